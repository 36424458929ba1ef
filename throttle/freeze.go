package throttle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Freeze closes a policy for d, for every process at once. It never shortens a
// freeze in force; [Limiter.Unfreeze] ends it. Calls in flight are left alone.
func (l *Limiter) Freeze(ctx context.Context, policy string, d time.Duration) error {
	calls, err := l.calls(policy)
	if err != nil {
		return err
	}
	return calls.freeze(ctx, d)
}

// Unfreeze opens a policy that is frozen, for every process at once. Its limits stay
// in force.
func (l *Limiter) Unfreeze(ctx context.Context, policy string) error {
	calls, err := l.calls(policy)
	if err != nil {
		return err
	}
	calls.closures.open("")
	return wrapCall("unfreeze", policy, l.redis.Del(ctx, calls.freezeKey).Err())
}

// FreezeKey closes one key of one limit for d: the key that the request's attributes
// name. Requests for other keys pass. It never shortens a freeze in force.
//
// The policy needs a [policy.Upstream], which keeps what is known of single keys; the error
// says so, or wraps [ErrUnknownPolicy], or is a [*policy.AttributeError].
func (l *Limiter) FreezeKey(ctx context.Context, request Request, limit string, d time.Duration) error {
	return l.closeKey(ctx, request, limit, max(d, time.Microsecond))
}

// UnfreezeKey opens what FreezeKey, or a refusal of the upstream, has closed.
func (l *Limiter) UnfreezeKey(ctx context.Context, request Request, limit string) error {
	return l.closeKey(ctx, request, limit, -time.Microsecond)
}

func (l *Limiter) closeKey(ctx context.Context, request Request, limit string, d time.Duration) error {
	calls, err := l.calls(request.Policy)
	if err != nil {
		return err
	}
	if calls.about == nil {
		return fmt.Errorf("throttle: single keys of policy %q can not be frozen: give it an upstream", request.Policy)
	}
	if err := declared(calls.policy).CheckRated(limit); err != nil {
		return fmt.Errorf("throttle: policy %q: %w", request.Policy, err)
	}
	_, err = l.Reconcile(ctx, request, Observation{Close: map[string]time.Duration{limit: d}})
	return err
}

func (c *policyCalls) freeze(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	c.closures.close("", d)
	err := c.scripts.Freeze.Run(ctx, c.redis, []string{c.freezeKey, c.newMark()}, d.Microseconds()).Err()
	return wrapCall("freeze", c.policy.Name, err)
}

// closures are what this process knows to be closed, so that a task that waits for a
// slot it got before does not start into a closed upstream. Redis decides; this only
// has the task ask again. Keys are those of states, and "" for the whole policy.
type closures struct {
	mu     sync.Mutex
	closed map[string]closure
}

// closure is since when and until when something is closed, by this process's clock.
type closure struct{ since, until time.Time }

// close notes that a key is closed from now on.
func (c *closures) close(key string, d time.Duration) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.closed = map[string]closure{}
	}
	maps.DeleteFunc(c.closed, func(_ string, of closure) bool { return !now.Before(of.until) }) // what is over is forgotten
	// Hearing of it again is no news: who asked since then knows.
	if until := now.Add(d); c.closed[key].until.Add(sameClosure).Before(until) {
		c.closed[key] = closure{since: now, until: until}
	}
}

// sameClosure is how far apart two answers may tell the end of one closure, because
// each took its time.
const sameClosure = 100 * time.Millisecond

// open forgets that a key is closed.
func (c *closures) open(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.closed, key)
}

// overtook reports whether one of the keys, or the policy, was closed after an answer
// was received, and still is.
func (c *closures) overtook(received, now time.Time, keys func() []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.closed) == 0 {
		return false
	}
	isOf := func(key string) bool {
		of, ok := c.closed[key]
		return ok && received.Before(of.since) && now.Before(of.until)
	}
	return isOf("") || slices.ContainsFunc(keys(), isOf)
}
