package throttle

import (
	"context"
	"slices"
	"sync"
	"time"
)

// How long who waits for a slot lets pass before asking again, in case one was
// freed elsewhere: first and at most.
const (
	shortestPause = 50 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// AwaitSlot waits for a slot of a concurrency limit, if r was denied for want of
// one and for nothing else: until it is granted, or the request's MaxWait is over,
// which its Outcome tells. It returns an error when ctx ends, or when Redis could
// not decide. In all other cases it returns nil at once.
//
// When a slot becomes free depends on tasks, not on time, so there is nothing to
// reserve ahead. In this process those who wait for a slot of the same key stand
// in line: its first is called when [Reservation.Release] ends a lease here, and
// asks again after a pause for those that ended elsewhere. So however many wait,
// one asks, at once when called and otherwise every 50 to 500 ms. Who needs more
// slots than are free holds up those behind, and so gets them in the end. Between
// processes there is no order: one that always has tasks waiting mostly keeps the
// slots it has. Tasks of the waiting line that stand by for slots of the same key
// come before all who wait here: see [Place].
func (r *Reservation) AwaitSlot(ctx context.Context) error {
	deadline := r.received.Add(r.claim.request.MaxWait)
	var place *place
	defer func() { place.leave(r.calls.leases.hasRoom(r, place)) }()
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		leases := r.calls.leases // an update may bring others
		limit, lacking := leases.lacking(r, time.Until(deadline))
		if !lacking {
			return nil
		}
		if key := leases.key(r.claim, limit); place == nil || place.key != key {
			place.leave(false)
			place = leases.line.join(key)
		}
		asks, err := place.wait(ctx, deadline, pause)
		if !asks {
			return err
		}
		request := r.claim.request
		request.MaxWait = time.Until(deadline)
		next, err := r.limiter.Reserve(ctx, request)
		if err != nil {
			return err
		}
		r.replace(next)
	}
}

// lacking returns which concurrency limit has no slot for r, and whether only that
// keeps r from a slot within the time that is left.
func (l *leases) lacking(r *Reservation, left time.Duration) (limit int, lacking bool) {
	if l == nil || r.Outcome != Denied || left <= 0 {
		return 0, false
	}
	soon := r.RetryAfter() <= left
	for _, i := range slices.Backward(l.limits) {
		status := &r.Limits[i]
		if status.Remaining < status.Cost {
			limit, lacking = i, true
		}
		soon = soon || status.Name == r.HeldBy
	}
	return limit, lacking && soon
}

// hasRoom reports whether r was granted and left room for the next in line.
func (l *leases) hasRoom(r *Reservation, p *place) bool {
	if l == nil || p == nil || r.Outcome != Granted {
		return false
	}
	return slices.ContainsFunc(l.limits, func(i int) bool {
		return l.key(r.claim, i) == p.key && r.Limits[i].Remaining > 0
	})
}

// line is where this process's tasks wait for slots, in a row for each key.
type line struct {
	mu     sync.Mutex
	places map[string][]*place
}

// place is one task's in the line for a key.
type place struct {
	line   *line
	key    string
	first  chan struct{} // closed when nobody is before it
	called chan struct{} // has something when there may be a slot
}

func (l *line) join(key string) *place {
	p := &place{line: l, key: key, first: make(chan struct{}), called: make(chan struct{}, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.places == nil {
		l.places = map[string][]*place{}
	}
	l.places[key] = append(l.places[key], p)
	if len(l.places[key]) == 1 {
		close(p.first)
	}
	return p
}

// leave makes way for the next, and calls it if there is room.
func (p *place) leave(room bool) {
	if p == nil {
		return
	}
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	row := p.line.places[p.key]
	at := slices.Index(row, p)
	row = slices.Delete(row, at, at+1)
	if len(row) == 0 {
		delete(p.line.places, p.key)
		return
	}
	p.line.places[p.key] = row
	if at == 0 {
		close(row[0].first)
		if room || len(p.called) > 0 {
			row[0].call()
		}
	}
}

// call tells the first in line for a key that there may be a slot.
func (l *line) call(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if row := l.places[key]; len(row) > 0 {
		row[0].call()
	}
}

func (p *place) call() {
	select {
	case p.called <- struct{}{}:
	default: // it is called already
	}
}

// wait returns true when it is time to ask: when called, or after a pause as the
// first. It returns false at the deadline, and with an error when ctx ends.
func (p *place) wait(ctx context.Context, deadline time.Time, pause time.Duration) (asks bool, err error) {
	patience := time.NewTimer(time.Until(deadline))
	defer patience.Stop()
	first := p.first
	var rested <-chan time.Time
	for {
		select {
		case <-first:
			rest := time.NewTimer(jitter(pause))
			defer rest.Stop()
			first, rested = nil, rest.C
		case <-rested:
			return true, nil
		case <-p.called:
			return true, nil
		case <-patience.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
