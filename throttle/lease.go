package throttle

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Hold keeps the slots that a granted reservation took from concurrency limits
// while its task runs: their leases are renewed when a third of their length is over,
// together with others of the policy's running tasks. Call it after
// [Reservation.Wait], and [Reservation.Release] when the task has really ended.
// When ctx ends first, the renewals end, and the slots with their leases.
//
// It returns at once. A reservation from a policy without a concurrency limit
// has nothing to hold, and neither has one that was not granted or is held.
func (r *Reservation) Hold(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	leases := r.leases()
	if leases == nil || r.cancelled || r.released || r.hold != nil {
		return
	}
	hold := leases.newHold(r)
	leases.keeper.add(hold)
	hold.forget = context.AfterFunc(ctx, func() { hold.keeper.drop(hold) })
	r.hold = hold
}

// Accept makes a reservation that was told to stand by a granted one, by the slot that its
// task was handed since, and reports whether it did. If not, the task is to ask: its policy
// has other limits besides, or others by now; or the lease may have ended, which the start
// must not outlast.
func (r *Reservation) Accept(slot line.Slot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.calls.outdated:
		return false
	default:
	}
	// One that was handed before the task asked had not reached it then, and may be gone.
	if r.Place == nil || !r.Place.StandsBy || len(r.calls.policy.Limits) != 1 || slot.Born < r.Now.UnixMicro() {
		return false
	}
	ends := time.UnixMicro(slot.Ends)
	if !r.latestNow(time.Now()).Before(ends) {
		return false
	}
	born := time.UnixMicro(slot.Born)
	r.sent = r.sent.Add(born.Sub(r.Now)) // its clock showed that no earlier
	r.place = r.Place.Since.UnixMicro()
	if r.claim.urgent {
		r.place -= urgentLead.Microseconds()
	}
	r.Outcome, r.Now, r.At, r.HeldBy, r.Place = Granted, born, born, "", nil
	r.useBy, r.term, r.receipts = ends, ends.Sub(born), []int64{slot.Born, 0}
	return true
}

// Lost returns a channel that is closed when a slot of a held reservation is lost
// while its task runs: the lease ran out, because this process or Redis stood
// still for longer than it, and others have taken the slot; or another attempt of
// the same task has taken it over; or Redis could not be asked for as long as the
// lease lasts. More tasks than slots may run then: whether the task is to go on is
// the caller's choice. Renewals go on, and get a slot back that becomes free.
//
// It is nil before [Reservation.Hold], and where that holds nothing.
func (r *Reservation) Lost() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold == nil {
		return nil
	}
	return r.hold.lost
}

// Release ends the slots that the reservation took from concurrency limits,
// because its task has ended. What it took from other limits stays taken. Once it
// has succeeded, further calls do nothing; after an error it may be called again,
// or the leases be left to run out.
//
// It goes on when ctx ends, for a few seconds at most. Without a concurrency limit
// it does nothing.
func (r *Reservation) Release(ctx context.Context) error {
	r.endHold()
	r.mu.Lock()
	leases, claim, receipts := r.leases(), r.claim, r.receipts
	if r.cancelled || r.released {
		leases = nil
	}
	r.mu.Unlock()
	if leases == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := leases.release(ctx, claim, receipts); err != nil {
		return err
	}
	r.mu.Lock()
	r.released = true
	r.mu.Unlock()
	return nil
}

// endHold ends the renewals and waits for one that is under way: what comes after
// it must have the last word.
func (r *Reservation) endHold() {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold == nil {
		return
	}
	hold.forget()
	if round := hold.keeper.drop(hold); round != nil {
		<-round
	}
}

// leases returns what makes calls about the slots that r has, or nil when it has
// none.
func (r *Reservation) leases() *leases {
	if r.Outcome != Granted {
		return nil
	}
	return r.heir().leases
}

// leases makes the calls for the concurrency limits of one policy.
type leases struct {
	calls  *policyCalls
	limits []int // the concurrency limits, by their place in the policy
	head   []any // see policyCalls, of these limits alone
	keeper keeper
}

// newLeases returns nil for a policy without a concurrency limit.
func newLeases(calls *policyCalls) *leases {
	l := &leases{calls: calls, limits: concurrencyLimits(calls.policy)}
	if len(l.limits) == 0 {
		return nil
	}
	for _, i := range l.limits {
		limit := &calls.policy.Limits[i]
		if l.keeper.lease == 0 || limit.LeaseLength() < l.keeper.lease {
			l.keeper.lease = limit.LeaseLength()
		}
	}
	l.head = headOf(calls.policy, l.limits)
	l.keeper.most = max(1, mostKeys/len(l.limits))
	l.keeper.renew = l.renew
	return l
}

// concurrencyLimits returns the places of the policy's concurrency limits.
func concurrencyLimits(p *policy.Policy) []int {
	var places []int
	for i := range p.Limits {
		if p.Limits[i].Algorithm == policy.Concurrency {
			places = append(places, i)
		}
	}
	return places
}

// newHolder returns a name for a task that has none, to hold its leases by.
func newHolder() string { return "unnamed/" + rand.Text() }

// key returns where a limit, by its place in the policy, keeps a claim's leases.
func (l *leases) key(c *claim, i int) string {
	return line.StateKey(l.calls.policy.Name, l.calls.policy.Limits[i].Name, c.keys[i])
}

// newHold returns what it takes to renew r's leases.
func (l *leases) newHold(r *Reservation) *hold {
	// The slot, and with it the lease, began no earlier than this.
	began := r.sent.Add(r.RetryAfter())
	h := &hold{
		keeper: &l.keeper,
		who:    line.KeyName(r.claim.request.TaskID),
		ends:   began.Add(cmp.Or(r.term, l.keeper.lease)),
		lost:   make(chan struct{}),
	}
	for _, i := range l.limits {
		h.leases = append(h.leases, heldLease{l.key(r.claim, i), r.claim.costs[i], r.receipts[2*i]})
	}
	return h
}

// backWithin is how soon a renewal must run in Redis to bring back a lease that is gone.
// It is shorter than a client waits for the answer: a call that was given up must not
// take a slot for a task that has ended by then.
const backWithin = time.Second

// renew renews the leases of some holds and tells for each whether it has them. Those
// that are gone are asked for once more, to come back: only here is it known that
// their tasks still run.
func (l *leases) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	has, now, err := l.renewUntil(ctx, holds, 0)
	if err != nil {
		return nil, err
	}
	var gone []*hold
	for i, h := range holds {
		if !has[i] {
			gone = append(gone, h)
		}
	}
	if len(gone) == 0 {
		return has, nil
	}
	back, _, err := l.renewUntil(ctx, gone, now+backWithin.Microseconds())
	if err != nil {
		return nil, err
	}
	for i := range has {
		if !has[i] {
			has[i], back = back[0], back[1:]
		}
	}
	return has, nil
}

// renewUntil makes one call, which brings leases back before an instant by Redis's
// clock, in microseconds; it returns that clock's time, too.
func (l *leases) renewUntil(ctx context.Context, holds []*hold, back int64) (has []bool, now int64, err error) {
	keys, args := []string{l.calls.freezeKey}, append(slices.Clone(l.head), "renew", back)
	places := map[string]int{}
	for _, h := range holds {
		args = append(args, h.who)
		for _, lease := range h.leases {
			if places[lease.key] == 0 {
				keys = append(keys, lease.key)
				places[lease.key] = len(keys)
			}
			args = append(args, places[lease.key], lease.cost, lease.born)
		}
	}
	reply, err := l.calls.scripts.Limits.Run(ctx, l.calls.redis, keys, args...).Int64Slice()
	if err == nil && len(reply) != 1+len(holds) {
		err = fmt.Errorf("a reply of %d numbers for %d requests", len(reply), len(holds))
	}
	if err != nil {
		return nil, 0, wrapCall("renew", l.calls.policy.Name, err)
	}
	for _, held := range reply[1:] {
		has = append(has, held == 1)
	}
	return has, reply[0], nil
}

// release ends the leases of a claim.
func (l *leases) release(ctx context.Context, c *claim, receipts []int64) error {
	keys := []string{l.calls.freezeKey}
	args := append(slices.Clone(l.head), "release", line.KeyName(c.request.TaskID))
	for _, i := range l.limits {
		keys = append(keys, l.key(c, i))
		args = append(args, receipts[2*i])
	}
	keys = append(keys, l.calls.line.Key)
	err := l.calls.scripts.Limits.Run(ctx, l.calls.redis, keys, args...).Err()
	return wrapCall("release", l.calls.policy.Name, err)
}
