package throttle

import (
	"reflect"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// generation is what one Config makes of a Limiter, until the next one is in force.
type generation struct {
	config   *policy.Config
	policies map[string]*policyCalls
	ended    chan struct{} // closed when the next one is in force
}

// newGeneration goes on with what the last one has of policies that stay as they are;
// it may be nil.
func newGeneration(client redis.UniversalClient, config *policy.Config, last *generation) *generation {
	g := &generation{config: config, policies: map[string]*policyCalls{}, ended: make(chan struct{})}
	for i := range config.Policies {
		policy := &config.Policies[i]
		before := last.calls(policy.Name)
		if before != nil && reflect.DeepEqual(last.config.Policy(policy.Name), policy) {
			g.policies[policy.Name] = before
			continue
		}
		calls := newPolicyCalls(client, complete(policy))
		if before != nil {
			calls.closures = before.closures // what this process knows, whatever the numbers
		}
		g.policies[policy.Name] = calls
	}
	return g
}

func (g *generation) calls(policy string) *policyCalls {
	if g == nil {
		return nil
	}
	return g.policies[policy]
}

// Update puts another Config in force, for every call that begins after it has
// returned. It may be called at any time, also while others use the Limiter; config
// must be valid and is not to be changed afterwards. If it is not valid nothing
// changes, and the error is a [*policy.ConfigError]; so it is if a limit keeps its name and
// changes its algorithm, which could not read what the other has counted.
//
// Policies, limits and routes may be added, changed and removed:
//
//   - A policy that is the same in both goes on undisturbed.
//   - Under other numbers, the share of a limit that was used stays used: no old debt,
//     no free refill. A limit that counts by another attribute, and one with another
//     name, begins anew. Who waits for a slot, in [Reservation.Wait], asks for another
//     one, in its order.
//   - Reservations stay what they are, and can be adjusted, reconciled, cancelled and
//     released as before. Leases that are held are renewed for as long as they were.
//   - Tasks in line keep their places, and are woken by the numbers that are in force.
//     A lane's new weight counts once a task has joined it.
//   - If tasks are to stand in line by another lane, or limits count by other attributes,
//     dispatchers have those in line ask anew, which costs each one attempt: they find
//     themselves in the lanes of now, by when they came.
//   - Reservations of a policy that was removed run to their end; new requests get
//     [ErrUnknownPolicy], and its tasks in line are woken.
//   - A task that another policy governs now asks that one when its turn has come in the
//     line that it stands in.
//
// All processes that share the policies should be updated at about the same time. Until
// then each goes by its own numbers, and what one of them takes is counted by those of all:
// together they start no more than the looser numbers allow.
func (l *Limiter) Update(config *policy.Config) error {
	if err := config.Validate(); err != nil {
		return err
	}
	l.updating.Lock()
	defer l.updating.Unlock()
	last := l.inForce.Load()
	if err := last.config.ValidateUpdate(config); err != nil {
		return err
	}
	next := newGeneration(l.redis, config, last)
	l.inForce.Store(next)
	for name, calls := range last.policies {
		if heir := next.policies[name]; heir != nil && heir != calls && !heir.hasNumbersOf(calls) {
			close(calls.outdated)
		}
	}
	close(last.ended)
	return nil
}

// Updated returns a channel that is closed by the next [Limiter.Update]. Who takes it
// before looking at the Config misses none.
func (l *Limiter) Updated() <-chan struct{} { return l.inForce.Load().ended }

// heir returns what makes the calls about what r took: with the numbers that it was made
// by, where a limit counts by them, and else with those that are in force now.
func (r *Reservation) heir() *policyCalls {
	now := r.limiter.inForce.Load().calls(r.Policy)
	switch {
	case now == nil:
		return r.calls
	case now == r.calls || now.hasNumbersOf(r.calls):
		return now
	}
	if bridge, ok := now.bridges.Load(r.calls); ok {
		return bridge.(*policyCalls)
	}
	bridge, _ := now.bridges.LoadOrStore(r.calls, now.bridge(r.calls))
	return bridge.(*policyCalls)
}

// bridge has the limits of an older policy, in its order; those that count leases or ask
// the upstream have the numbers of now.
func (c *policyCalls) bridge(from *policyCalls) *policyCalls {
	policy := *c.policy
	policy.Limits = slices.Clone(from.policy.Limits)
	for i := range policy.Limits {
		was := &policy.Limits[i]
		if is := c.policy.Limit(was.Name); is != nil && countAlike(is, was) && !hasViews(was) {
			*was = *is
		}
	}
	bridge := newPolicyCalls(c.redis, &policy)
	bridge.closures, bridge.line, bridge.scripts = c.closures, c.line, c.scripts
	return bridge
}

// countAlike reports whether two limits of one name count at the same keys, whatever
// their numbers.
func countAlike(a, b *policy.Limit) bool {
	return a.Name == b.Name && a.Per == b.Per && a.Kind() == b.Kind()
}

// hasViews reports whether what is taken from a limit is counted by its numbers: see
// lua/parts/policy.lua. Leases and logs are facts.
func hasViews(l *policy.Limit) bool {
	switch l.Algorithm {
	case policy.TokenBucket, policy.FixedWindow, policy.SlidingWindow, policy.Spacing:
		return true
	case policy.SlidingLog, policy.Concurrency, told, pace:
	}
	return false
}

// hasNumbersOf reports whether the limits are the same, and their numbers.
func (c *policyCalls) hasNumbersOf(other *policyCalls) bool {
	return slices.EqualFunc(c.policy.Limits, other.policy.Limits, func(a, b policy.Limit) bool {
		return countAlike(&a, &b) && scriptLimit(c.policy, &a) == scriptLimit(other.policy, &b)
	})
}
