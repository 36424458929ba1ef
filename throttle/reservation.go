package throttle

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Lateness is how much later than its slot a start may be before [Reservation.Wait]
// gives the slot up and reserves a new one. It bounds how far the starts of a
// token bucket can bunch up: over every interval t they stay within
// burst + rate x (t + Lateness), and those of a [policy.Spacing] within
// 1 + rate x (t + Lateness). Starts that a [policy.SlidingLog] counts are given up
// earlier.
const Lateness = 20 * time.Millisecond

// mostLate is how often in a row Wait may wake too late before it gives up: this
// process can not keep a slot now.
const mostLate = 10

// What else than a limit can hold a task back.
const (
	// HeldByFreeze: the policy is frozen.
	HeldByFreeze = policy.ReservedName
	// HeldByLateness: the process woke too late for its slots, again and again.
	HeldByLateness = "lateness"
)

// Reservation is the answer to a request, and what was taken for it. Its methods
// are safe for concurrent use, reading the Decision while Wait runs is not.
type Reservation struct {
	Decision

	limiter *Limiter
	calls   *policyCalls // that decided
	claim   *claim

	// The local instants between which Redis decided: they alone tie a local
	// clock to Redis's.
	sent, received time.Time
	useBy          time.Time     // by Redis's clock, when a window ends; zero for none
	lateness       time.Duration // of a start, at most; zero for any
	term           time.Duration // of a lease that was handed over; zero for as the limit says
	receipts       []int64
	// place is where the task stood in line, or when it came if it did not stand there,
	// in microseconds.
	place int64

	mu        sync.Mutex
	cancelled bool
	settled   bool  // what the upstream says has been heard
	used      bool  // by a call
	hold      *hold // while its task runs
	// unsure is the last adjustment if nobody knows whether it was made.
	unsure   adjustment
	released bool
}

// Wait sleeps until the slot of a granted reservation and returns nil when the
// task is to start now. When it wakes too late for the slot (a stalled process,
// a window that ended), or into what this process heard was closed meanwhile, it
// gives the slot back and reserves another within the request's MaxWait. It does so,
// too, as soon as [Limiter.Update] brings other limits; a task with Park that has to
// wait for longer then has its old place in line.
//
// Of a reservation that was not granted it returns at once an
// [*ThrottledError], an [*OverloadError] or a [*policy.NeverError]. When ctx ends first
// it cancels the reservation and returns ctx's error.
func (r *Reservation) Wait(ctx context.Context) error {
	for late := 0; ; {
		switch r.Outcome {
		case Never:
			return r.claim.never
		case Denied:
			if r.TurnedAway {
				return r.Overloaded()
			}
			return r.Throttled()
		case Granted:
		}
		updated, err := r.sleep(ctx)
		if err != nil {
			_ = r.Cancel(ctx) // best effort: unused tokens come back by themselves in time
			return err
		}
		switch now := time.Now(); {
		case updated:
			_ = r.Cancel(ctx)
			if err := r.takeTurn(ctx); err != nil {
				return err
			}
		case !r.isLate(now) && !r.isOvertaken(now):
			return nil
		default:
			_ = r.Cancel(ctx)
			if late == mostLate {
				return &ThrottledError{Policy: r.Policy, HeldBy: HeldByLateness, Until: r.At}
			}
			late++
		}
		next, err := r.again(ctx)
		if err != nil {
			return err
		}
		r.replace(next)
	}
}

// Limiter returns the Limiter that made the reservation.
func (r *Reservation) Limiter() *Limiter { return r.limiter }

// Terms returns the policy that is in force under its name now; or, if it was removed
// since, the one that r was made by.
func (r *Reservation) Terms() *policy.Policy {
	if policy := r.limiter.Config().Policy(r.Policy); policy != nil {
		return policy
	}
	r.mu.Lock()
	policy := r.calls.policy
	r.mu.Unlock()
	return declared(policy)
}

// Request returns what was asked for.
func (r *Reservation) Request() Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claim.request
}

// Use reports whether a call may be made by this reservation: for the first call that
// asks for the same keys and costs, and for no other. The others are to reserve.
func (r *Reservation) Use(request Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used || r.settled || r.cancelled || r.Outcome != Granted || request.Policy != r.Policy {
		return false
	}
	same, err := newClaim(r.calls.policy, request)
	if err != nil || !slices.Equal(same.keys, r.claim.keys) || !slices.Equal(same.costs, r.claim.costs) {
		return false
	}
	r.used = true
	return true
}

// again asks for another slot in place of one that was missed. Whose turn it was, has
// it still; only if no slot is near does the task go back to its place in line.
func (r *Reservation) again(ctx context.Context) (*Reservation, error) {
	return r.limiter.reserve(ctx, r.claim.request, r.place)
}

// Throttled returns the error that defers a task for as long as the decision
// says.
func (r *Reservation) Throttled() *ThrottledError {
	return &ThrottledError{Policy: r.Policy, HeldBy: r.HeldBy, RetryAfter: r.RetryAfter(), Until: r.At, Place: r.Place}
}

// Cancel gives back what the reservation took, for a task that will not start.
// Only the first call has an effect. It gives back exactly its own: a slot ahead
// goes to the next request that can take it as it stands, and nobody else's moves.
// It goes on when ctx ends, for a few seconds at most.
func (r *Reservation) Cancel(ctx context.Context) error {
	r.endHold()
	r.mu.Lock()
	done := r.cancelled || r.Outcome != Granted
	r.cancelled = true
	if !done && r.settled {
		r.claim = r.claim.landed(r.calls.policy)
	}
	r.mu.Unlock()
	if done {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	calls := r.heir()
	return calls.settle(ctx, "cancel", r, r.claim.costs, calls.newMark())
}

// Adjust corrects what the reservation took to what its task really cost, once
// that is known: attributes hold the actual values of the limits' Cost attributes,
// as in {"tokens": "1234"}, which may be 0 or above what the limit holds. Limits
// whose attribute is not among them stay as they are. Adjusting again counts from
// the adjusted cost.
//
// What is more is taken at once, and those who come next wait for it. What is less
// is given back, except for what the limit's refill has made up for by then. The
// error is a [*policy.AttributeError] when a value is no cost. It goes on when ctx ends,
// for a few seconds at most.
func (r *Reservation) Adjust(ctx context.Context, attributes map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancelled || r.Outcome != Granted {
		return nil
	}
	calls := r.heir()
	costs, err := r.claim.adjusted(r.calls.policy, attributes)
	if err != nil {
		return err
	}
	more := make([]int64, len(costs))
	for i := range costs {
		if r.settled && isAboutUpstream(&calls.policy.Limits[i]) {
			costs[i] = r.claim.costs[i] // the upstream has told of it
		}
		more[i] = costs[i] - r.claim.costs[i]
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if !slices.Equal(r.unsure.more, more) {
		r.unsure = adjustment{more, calls.newMark()}
	}
	if err := calls.settle(ctx, "adjust", r, more, r.unsure.mark); err != nil {
		return err
	}
	r.unsure = adjustment{}
	adjusted := *r.claim
	adjusted.costs = costs
	r.claim = &adjusted
	return nil
}

// adjustment is a change of costs, and the mark by which it is made once.
type adjustment struct {
	more []int64
	mark string
}

// sleep sleeps until the slot, or until other limits are in force.
func (r *Reservation) sleep(ctx context.Context) (updated bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	delay := r.untilSlot()
	if delay <= 0 {
		return false, nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-r.calls.outdated:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// untilSlot counts from when the answer was received, before which Redis decided: so a
// start is never early.
func (r *Reservation) untilSlot() time.Duration { return r.RetryAfter() - time.Since(r.received) }

// takeTurn lets those ask again first whose slots were nearer: by then, all who wait
// here have given theirs back.
func (r *Reservation) takeTurn(ctx context.Context) error {
	delay := max(0, r.untilSlot())
	timer := time.NewTimer(time.Duration(float64(longestTurn) * delay.Seconds() / (delay + halfTurn).Seconds()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// How long those that wait for slots let pass before they ask again under other limits:
// the longer, the further off their slots were; half of the longest for a slot that was
// so far ahead.
const (
	longestTurn = 200 * time.Millisecond
	halfTurn    = 2 * time.Second
)

// isLate reports whether a start at the local instant x would be too late.
func (r *Reservation) isLate(x time.Time) bool {
	if r.lateness > 0 && x.Sub(r.received.Add(r.RetryAfter())) > r.lateness {
		return true
	}
	return !r.useBy.IsZero() && !r.latestNow(x).Before(r.useBy)
}

// latestNow is what Redis's clock shows at most at the local instant x, because it decided
// after the request was sent.
func (r *Reservation) latestNow(x time.Time) time.Time { return r.Now.Add(x.Sub(r.sent)) }

// isOvertaken reports whether something was closed while r waited for its slot.
func (r *Reservation) isOvertaken(x time.Time) bool {
	calls := r.calls
	return calls.closures.overtook(r.received, x, func() []string { return calls.keys(r.claim)[1:] })
}

// replace makes r the reservation that next is.
func (r *Reservation) replace(next *Reservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Decision, r.cancelled, r.settled, r.used = next.Decision, false, false, false
	r.sent, r.received = next.sent, next.received
	r.useBy, r.term, r.receipts = next.useBy, next.term, next.receipts
	r.calls, r.lateness = next.calls, next.lateness
	next.claim.request = r.claim.request
	r.claim = next.claim
	if next.Outcome == Granted && next.place < r.place {
		r.place = next.place
	}
}
