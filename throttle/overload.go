package throttle

import (
	"fmt"
	"strconv"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// anyDefer is as good as no MaxDefer, in a script: thirty years.
const anyDefer = 30 * policy.MaxPeriod

// OverloadError says that a task's start was too far ahead for it to stand in line, and
// how its policy's overload strategy came to act on it.
type OverloadError struct {
	Policy string
	// HeldBy is the limit that held the task back, as in [Decision.HeldBy].
	HeldBy string
	// Place is where the task would have stood, and when it was expected to start.
	Place Place
	// Delay is how far ahead that was.
	Delay time.Duration
	// MaxDefer is how far ahead it could have been; zero where nothing is parked.
	MaxDefer time.Duration
	// Deadline is the task's, if that is what the start would have missed; or else zero.
	Deadline time.Time
}

// Error says what would have held the task, until when, and why that was too long.
func (e *OverloadError) Error() string {
	heldBy := "those before it in line" + e.Place.inLane()
	if e.HeldBy != "" {
		heldBy = strconv.Quote(e.HeldBy)
	}
	return fmt.Sprintf("overload: policy %q is held by %s, start expected at %s, in %s, as number %d in line%s; %s",
		e.Policy, heldBy, timestamp(e.Place.Expected), e.Delay.Round(time.Millisecond), e.Place.Position, e.Place.inLane(), e.reason())
}

func (e *OverloadError) reason() string {
	switch {
	case !e.Deadline.IsZero():
		return "the task's deadline is " + timestamp(e.Deadline)
	case e.MaxDefer > 0:
		return "max_defer is " + e.MaxDefer.String()
	}
	return "the policy parks no tasks"
}

// Overloaded returns the error of a reservation that was turned away.
func (r *Reservation) Overloaded() *OverloadError {
	e := &OverloadError{Policy: r.Policy, HeldBy: r.HeldBy, Delay: r.RetryAfter()}
	if r.Place != nil {
		e.Place = *r.Place
	}
	if longest := r.claim.request.MaxDefer; longest > policy.MinMaxDefer {
		e.MaxDefer = longest
	}
	return e
}

// deferUS is the claim's MaxDefer for the scripts.
func (c *claim) deferUS() int64 {
	switch {
	case c.request.MaxDefer == 0:
		return anyDefer.Microseconds()
	case c.request.MaxDefer < 0:
		return -1
	}
	return c.request.MaxDefer.Microseconds()
}
