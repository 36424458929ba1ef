package throttle

import (
	"context"
	"math/rand/v2"
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
	renewed time.Time     // its leases last at least a lease from this instant
	isLost  bool          // lost is closed
	round   chan struct{} // closed when the round that has it now is over
}

// heldLease is a lease as the reservation has it that took it.
type heldLease struct {
	key        string // of the limit's state
	cost, born int64
}

// keeper renews the leases of a policy's running tasks, all in one call, from one
// goroutine. That runs as long as there are any.
type keeper struct {
	lease time.Duration // the shortest of the policy
	most  int           // holds of one call
	renew func(context.Context, []*hold) ([]bool, error)

	mu    sync.Mutex
	holds map[*hold]struct{}
	empty chan struct{} // closed when the last hold goes; nil when there is none
}

// add begins to renew the leases of a hold.
func (k *keeper) add(h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.empty == nil {
		k.holds, k.empty = map[*hold]struct{}{}, make(chan struct{})
		go k.keep(k.empty)
	}
	k.holds[h] = struct{}{}
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

// keep makes rounds until empty is closed.
func (k *keeper) keep(empty <-chan struct{}) {
	timer := time.NewTimer(jitter(k.lease / roundsPerLease))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			rounds := time.Duration(roundsPerLease)
			if k.makeRound() != nil {
				rounds = triesPerLease
			}
			timer.Reset(jitter(k.lease / rounds))
		case <-empty:
			return
		}
	}
}

// makeRound renews what is held now, and returns why that failed for some.
func (k *keeper) makeRound() error {
	round := make(chan struct{})
	defer close(round)
	k.mu.Lock()
	holds := make([]*hold, 0, len(k.holds))
	for h := range k.holds {
		h.round = round
		holds = append(holds, h)
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
	ctx, cancel := context.WithTimeout(context.Background(), min(callTimeout, k.lease/roundsPerLease))
	defer cancel()
	sent := time.Now()
	has, err := k.renew(ctx, holds)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, h := range holds {
		h.round = nil
		if err == nil && has[i] {
			h.renewed = sent
			continue
		}
		// Unasked, Redis keeps a lease to its end, and not beyond.
		if !h.isLost && (err == nil || time.Since(h.renewed) >= k.lease) {
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
