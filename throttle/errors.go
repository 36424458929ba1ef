package throttle

import (
	"errors"
	"fmt"
	"time"
)

// ErrUnknownPolicy is wrapped by the error for a request whose policy the
// Limiter does not have.
var ErrUnknownPolicy = errors.New("unknown policy")

// AttributeError says that a task does not carry what a limit needs: the
// attribute is missing, or its value is no cost. Asking again with the same
// attributes fails again.
type AttributeError struct {
	Policy, Limit, Attribute string
	// Problem is what is wrong with it, as in "is missing".
	Problem string
}

// Error names attribute, limit and policy.
func (e *AttributeError) Error() string {
	return fmt.Sprintf("attribute %q %s: limit %q of policy %q needs it (set it as a task header)",
		e.Attribute, e.Problem, e.Limit, e.Policy)
}

// NeverError says that a request can never pass, because it costs more than a
// limit ever holds.
type NeverError struct {
	Policy, Limit string
	Cost, Max     int64
}

// Error names cost, limit and policy.
func (e *NeverError) Error() string {
	return fmt.Sprintf("cost %d can never pass: limit %q of policy %q holds at most %d",
		e.Cost, e.Limit, e.Policy, e.Max)
}

// ThrottledError defers a task: an asynq handler that returns it is run again
// at about the time it names, at no cost of a retry. The worker package makes
// it of a denial; a handler may return one of its own.
type ThrottledError struct {
	Policy string
	// HeldBy is the limit that held the task back, or "freeze".
	HeldBy string
	// RetryAfter is how long to stay away.
	RetryAfter time.Duration
	// Until is when RetryAfter ends, by Redis's clock; for messages only.
	Until time.Time
}

// Error says what the task waits for and until when; asynq shows it as the
// task's last error.
func (e *ThrottledError) Error() string {
	return fmt.Sprintf("throttled: policy %q is held by %q; deferred until %s, no retry spent",
		e.Policy, e.HeldBy, e.Until.UTC().Format("2006-01-02T15:04:05.000Z"))
}
