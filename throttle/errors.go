package throttle

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// ErrUnknownPolicy is wrapped by the error for a request whose policy the
// Limiter does not have.
var ErrUnknownPolicy = errors.New("unknown policy")

// ThrottledError defers a task: an asynq handler that returns it is run again
// at about the time it names, at no cost of a retry. The worker package makes
// it of a denial; a handler may return one of its own.
type ThrottledError struct {
	Policy string
	// HeldBy is the limit that held the task back, or what else did, as in
	// [HeldByFreeze].
	HeldBy string
	// RetryAfter is how long to stay away.
	RetryAfter time.Duration
	// Until is when RetryAfter ends; for messages only.
	Until time.Time
	// Place is where the task stands in the waiting line; nil if it does not.
	Place *Place
	// Cause is set when it was no limit that held the task back, but that none
	// could be asked.
	Cause error
}

// Error says what the task waits for and until when; asynq shows it as the
// task's last error.
func (e *ThrottledError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("throttled: policy %q could not be asked (%v); deferred, no retry spent", e.Policy, e.Cause)
	}
	line := ""
	if e.Place != nil {
		line = fmt.Sprintf(" as number %d in line%s since %s", e.Place.Position, e.Place.inLane(), timestamp(e.Place.Since))
	}
	return fmt.Sprintf("throttled: policy %q is held by %q; deferred until %s%s, no retry spent",
		e.Policy, e.HeldBy, timestamp(e.Until), line)
}

// inLane says which lane it is, if there are several.
func (p *Place) inLane() string {
	if p.Lane == "" {
		return ""
	}
	return fmt.Sprintf(" of lane %q", shorten(p.Lane))
}

func shorten(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Unwrap returns Cause.
func (e *ThrottledError) Unwrap() error { return e.Cause }

// RateLimitedError says that the upstream refused a call because of its quota:
// a 429, or a 503 that says when to come back. A handler that returns it has its
// policy frozen for RetryAfter, for every process at once, and its task deferred
// at no cost of a retry.
type RateLimitedError struct {
	// Status is what the upstream answered, as in "429 Too Many Requests".
	Status string
	// RetryAfter is how long the upstream wants to be left alone. Zero if it does not
	// say.
	RetryAfter time.Duration
	// Heeded tells that what the refusal speaks of is closed already, so that the
	// policy need not be frozen; see upstream.Heed.
	Heeded bool
	// Alone tells that the refusal concerns this call alone: its task is deferred for
	// RetryAfter, and others go on.
	Alone bool
}

// Error says what the upstream answered and for how long.
func (e *RateLimitedError) Error() string {
	if e.RetryAfter <= 0 {
		return fmt.Sprintf("rate-limited by the upstream: %s", e.Status)
	}
	return fmt.Sprintf("rate-limited by the upstream: %s, retry after %s", e.Status, e.RetryAfter)
}

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
