package throttle

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// parking makes the flight for an operation that puts tasks into line.
func (c *policyCalls) parking(operation string) flight {
	return flight{most: c.flight.most, land: func(passengers []*passenger) {
		// Who comes in order is mostly the last of his row, which is soon told.
		slices.SortStableFunc(passengers, func(a, b *passenger) int {
			return cmp.Compare(a.claim.request.MaxWait, b.claim.request.MaxWait)
		})
		c.decide(operation, passengers, func(*Reservation) {})
	}}
}

// LookAhead tells where the task of a request would stand if it asked for its start now,
// with Park: the Place of the Decision, which is nil if the task would not be put into
// line. It changes nothing; of the request, Policy, TaskID, Attributes and MaxWait
// count, and TaskID must not be empty. Concurrent calls for one policy travel together,
// and who would be in line is taken to be there by those behind. Its errors are
// Reserve's.
//
// What only lacks a slot of a concurrency limit, with nobody ahead, is not told to be
// put into line: a worker can hold it until one is free, which may be at any moment.
func (l *Limiter) LookAhead(ctx context.Context, request Request) (Decision, error) {
	return l.park(ctx, request, "look ahead", 0, func(c *policyCalls) *flight { return &c.looks })
}

// Join puts the task of a request into the waiting line of its policy, whoever is in
// line, without asking for its start: it will be woken when its turn comes. It stands
// among those who came when it did, which is now if since is zero or more than a minute
// ago; LookAhead tells a Place.Since that no other has. A task that is in line keeps its
// place. It must be there to be woken already.
//
// Of the request, Policy, TaskID and Attributes count, and TaskID must not be empty.
// Concurrent calls for one policy travel together. Its errors are Reserve's; a task that
// can never pass does not join.
func (l *Limiter) Join(ctx context.Context, request Request, since time.Time) (Decision, error) {
	request.MaxWait = 0 // nothing of a wait is asked for; the script takes an instant here
	if !since.IsZero() {
		request.MaxWait = time.Duration(since.UnixMicro()) * time.Microsecond
	}
	return l.park(ctx, request, "join the line", 0, func(c *policyCalls) *flight { return &c.joins })
}

// park asks for a place by one of the flights; of a task that is in line, as of the place
// that it has.
func (l *Limiter) park(ctx context.Context, request Request, operation string, place int64, by func(*policyCalls) *flight) (Decision, error) {
	request.Park, request.MaxDefer, request.Attempt = true, 0, ""
	calls, claim, err := l.claim(request)
	if err != nil {
		return Decision{}, err
	}
	if decision, impossible := claim.impossible(); impossible {
		return decision, nil
	}
	claim.since = place
	r, err := by(calls).carry(ctx, newPassenger(claim, l))
	if err != nil {
		return Decision{}, wrapCall(operation, request.Policy, err)
	}
	return r.Decision, nil
}
