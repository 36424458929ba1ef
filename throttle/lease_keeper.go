package throttle

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// How many rounds of renewals fit into a lease: as a rule, and while Redis does not
// answer.
const (
	roundsPerLease = 3
	triesPerLease  = 12
)

// hold is the leases of one running task.
type hold struct {
	keeper *keeper
	who    string
	leases []heldLease // one of each concurrency limit

	lost   chan struct{} // closed when a lease is lost
	forget func() bool   // ends the watch over the caller's context

	// For the keeper, under its lock.
	ends   time.Time     // its leases last at least until then
	length time.Duration // of the leases that it has now
	due    time.Time     // when they are to be renewed
	isLost bool          // lost is closed
	round  chan struct{} // closed when the round that has it now is over
}

// heldLease is a lease as the reservation has it that took it.
type heldLease struct {
	key        string // of the limit's state
	cost, born int64
}

// keeper renews the leases of a policy's running tasks, many in one call, from one
// goroutine. That runs as long as there are any.
type keeper struct {
	lease time.Duration // the shortest of the policy
	most  int           // holds of one call
	renew func(context.Context, []*hold) ([]bool, error)

	mu     sync.Mutex
	holds  map[*hold]struct{}
	next   time.Time     // when the next round is made
	sooner chan struct{} // has something when that is not soon enough
	empty  chan struct{} // closed when the last hold goes; nil when there is none
}

// add begins to renew the leases of a hold.
func (k *keeper) add(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.length = max(time.Until(h.ends), time.Millisecond)
	h.due = time.Now().Add(jitter(h.length / roundsPerLease))
	if k.empty == nil {
		k.holds, k.empty, k.sooner = map[*hold]struct{}{}, make(chan struct{}), make(chan struct{}, 1)
		k.next = h.due
		go k.keep(h.due, k.sooner, k.empty)
	}
	k.holds[h] = struct{}{}
	if h.due.Before(k.next) {
		k.next = h.due
		select {
		case k.sooner <- struct{}{}:
		default: // it looks anyway
		}
	}
}

// drop ends the renewals of a hold. It returns a channel that is closed when the
// last one is over, or nil when none is under way.
func (k *keeper) drop(h *hold) (round <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.holds[h]; ok {
		delete(k.holds, h)
		if len(k.holds) == 0 {
			close(k.empty)
			k.empty = nil
		}
	}
	if h.round == nil {
		return nil
	}
	return h.round
}

// keep makes rounds until empty is closed, the first at that time.
func (k *keeper) keep(first time.Time, sooner, empty <-chan struct{}) {
	timer := time.NewTimer(time.Until(first))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			_ = k.makeRound(k.dueHolds()) // those that failed are soon due again
		case <-sooner:
		case <-empty:
			return
		}
		timer.Reset(time.Until(k.nextRound()))
	}
}

// nextRound is when the first of the holds is due.
func (k *keeper) nextRound() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = time.Now().Add(k.lease)
	for h := range k.holds {
		if h.due.Before(k.next) {
			k.next = h.due
		}
	}
	return k.next
}

// dueHolds are those whose leases are to be renewed now, and if there are any, those that
// soon will be.
func (k *keeper) dueHolds() []*hold {
	now := time.Now()
	var due, soon []*hold
	k.mu.Lock()
	defer k.mu.Unlock()
	for h := range k.holds {
		switch early := h.due.Sub(now); {
		case early <= 0:
			due = append(due, h)
		case early < h.length/roundsPerLease/2:
			soon = append(soon, h)
		}
	}
	if len(due) == 0 {
		return nil
	}
	return append(due, soon...)
}

// makeRound renews the leases of holds, but of those that have ended meanwhile. It returns
// why that failed for some.
func (k *keeper) makeRound(holds []*hold) error {
	round := make(chan struct{})
	defer close(round)
	k.mu.Lock()
	holds = slices.DeleteFunc(holds, func(h *hold) bool {
		_, isHeld := k.holds[h]
		return !isHeld
	})
	for _, h := range holds {
		h.round = round
	}
	k.mu.Unlock()

	var failed error
	for len(holds) > 0 {
		n := min(k.most, len(holds))
		if err := k.renewSome(holds[:n]); err != nil {
			failed = err
		}
		holds = holds[n:]
	}
	return failed
}

func (k *keeper) renewSome(holds []*hold) error {
	sent := time.Now()
	timeout := min(callTimeout, k.lease/roundsPerLease)
	for _, h := range holds { // what may be lost by then is to be told
		timeout = min(timeout, max(h.ends.Sub(sent), h.length/triesPerLease))
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	has, err := k.renew(ctx, holds)
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for i, h := range holds {
		h.round = nil
		if err == nil {
			h.length, h.due = k.lease, now.Add(jitter(k.lease/roundsPerLease))
		} else {
			h.due = now.Add(jitter(h.length / triesPerLease))
		}
		if err == nil && has[i] {
			h.ends = sent.Add(k.lease)
			continue
		}
		// Unasked, Redis keeps a lease to its end, and not beyond.
		if !h.isLost && (err == nil || !now.Before(h.ends)) {
			h.isLost = true
			close(h.lost)
		}
	}
	return err
}

// jitter shortens a duration by up to a fifth, so that processes that began
// together do not go on in step.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
