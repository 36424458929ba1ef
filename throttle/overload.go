package throttle

import (
	"errors"
	"fmt"
	"time"
)

// Overload names a strategy for overload: what becomes of a task whose start is
// further off than its policy's MaxDefer, or comes after the task's own deadline.
// Without a MaxDefer, any strategy but OverloadPark acts as soon as a task would have
// to be parked.
//
// What nobody can tell is no overload: a task that only lacks a slot of a concurrency
// limit may get one at any moment. For OverloadPark and where there is a MaxDefer it
// is parked; else it waits in its worker for MaxWait first.
type Overload string

// The strategies.
const (
	// OverloadPark has tasks stand in line. One that can not, because its start is
	// further off than a MaxDefer or comes after its deadline, is rejected. The
	// default.
	OverloadPark Overload = "park"
	// OverloadReject archives the task with an [*OverloadError], at once and whatever
	// retries it has left.
	OverloadReject Overload = "reject"
	// OverloadDrop removes the task, as if it had never been, and counts it.
	OverloadDrop Overload = "drop"
	// OverloadDegrade runs a fallback in place of the task's handler.
	OverloadDegrade Overload = "degrade"
)

// overloads are all of them, as a policies file has them.
var overloads = []string{string(OverloadPark), string(OverloadReject), string(OverloadDrop), string(OverloadDegrade)}

// MaxMaxDefer is the longest MaxDefer: what is further off than the longest period is
// no delay but a mistake.
const MaxMaxDefer = MaxPeriod

// Strategy returns Overload with its default applied.
func (p *Policy) Strategy() Overload {
	if p.Overload == "" {
		return OverloadPark
	}
	return p.Overload
}

// Parks reports whether tasks of the policy are parked at all.
func (p *Policy) Parks() bool { return p.Strategy() == OverloadPark || p.MaxDefer > 0 }

// LongestDefer is the MaxDefer of requests for the policy's tasks.
func (p *Policy) LongestDefer() time.Duration {
	if !p.Parks() {
		return unlessUnknown
	}
	return p.MaxDefer
}

// unlessUnknown lets no request join the line but those for which time alone does not
// tell when they pass: the shortest MaxDefer there is.
const unlessUnknown = time.Microsecond

// anyDefer is as good as no MaxDefer, in a script: thirty years.
const anyDefer = 30 * MaxPeriod

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
		heldBy = quote(e.HeldBy)
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
	if longest := r.claim.request.MaxDefer; longest > unlessUnknown {
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

func (f *findings) overload(path string, p *Policy) {
	if p.Overload != "" {
		if err := checkWord("overload strategy", string(p.Overload), overloads...); err != nil {
			f.add(join(path, "overload"), "%v", err)
		}
	}
	if p.MaxDefer != 0 {
		if err := checkMaxDefer(p.MaxDefer); err != nil {
			f.add(join(path, "max_defer"), "%v", err)
		}
	}
}

// checkMaxDefer tells what is wrong with a max_defer that was given, or returns nil.
func checkMaxDefer(d time.Duration) error {
	switch {
	case d <= 0:
		return errors.New("the max_defer must be longer than zero; to defer nothing, remove it and write overload: reject")
	case d > MaxMaxDefer:
		return errors.New("the max_defer must be at most 366d; leave it out for no bound")
	case d%time.Microsecond != 0:
		return errors.New("the max_defer must be whole microseconds")
	}
	return nil
}
