package throttle

import (
	"fmt"
	"time"
)

// Request asks for the start of one task.
type Request struct {
	// Policy is the name of the policy whose limits the task must pass.
	Policy string
	// TaskID tells whose request this is, in messages. May be empty.
	TaskID string
	// Attributes supply what the limits' Per and Cost name.
	Attributes map[string]string
	// MaxWait is how far in the future the slot may lie for it to be reserved.
	// Zero asks for now or not at all.
	MaxWait time.Duration
	// Attempt names this ask, for who may have to ask again because the answer was
	// lost on its way. Another request with the same Attempt, which must be equal in
	// all else, gets what was granted to the first instead of taking the cost again,
	// until five seconds after its slot; [Reservation.Wait] takes care of a slot that
	// has passed. A new start needs a new Attempt. Empty means none; to keep an answer
	// costs one more Redis command, and about twice the time in Redis.
	Attempt string
	// Park makes a denied request join the waiting line of its policy under its
	// TaskID, which must not be empty, and makes any request heed that line.
	Park bool
	// MaxDefer is how far ahead the start of a denied request may be expected for it to
	// join the line; one that stands there already leaves it otherwise. For requests that
	// only lack a slot of a concurrency limit it does not count. Zero means no bound;
	// with a negative MaxDefer no request joins, whatever it lacks.
	MaxDefer time.Duration
	// StandBy tells that the task can wait where it is until it is called, for as long as
	// that takes. When it was woken and only lacks a slot of a concurrency limit it may
	// then be told to stand by: see [Place].
	StandBy bool
	// Called tells that the task was called: it does not wait for company in the call.
	Called bool
	// Since is for a task that stood by until now: the Since of the Place that it was told.
	// It still has that place, and is in no line until it asks. Zero means that the task
	// did not stand by.
	Since time.Time
}

// Outcome is what came of a request.
type Outcome int

const (
	// Denied means the slot lies further off than MaxWait; nothing was taken.
	Denied Outcome = iota
	// Granted means the cost was taken from every limit, for the instant At.
	Granted
	// Never means the request can not pass whatever the wait: its cost is above
	// what a limit ever holds. Redis was not asked.
	Never
)

// String returns "denied", "granted" or "never".
func (o Outcome) String() string {
	switch o {
	case Granted:
		return "granted"
	case Never:
		return "never"
	case Denied:
		return "denied"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// Decision is the answer to a request. Its times are Redis's, in whole
// microseconds.
type Decision struct {
	Outcome Outcome
	Policy  string
	// Now is Redis's time at the decision.
	Now time.Time
	// At is the slot of a granted request; of a denied one, the first instant at
	// which all limits would pass, or Place.Expected.
	At time.Time
	// HeldBy is the name of the limit that set At, "freeze" when the policy is
	// frozen until then, and empty when At is Now.
	HeldBy string
	// Place is where the task of a denied request with Park stands in line, and nil
	// for others; see TurnedAway.
	Place *Place
	// TurnedAway tells that a denied request did not join the line because of its
	// MaxDefer. Place then says where it would have stood.
	TurnedAway bool
	// Limits has the state of every limit of the policy, in the policy's order,
	// after this decision. Empty for Never. What the upstream itself has told comes
	// after them, as "hourly/upstream" for a limit named hourly, once it has.
	Limits []LimitStatus
}

// RetryAfter is how long until this request could start: the time from Now to
// At. Zero when it may start at once.
func (d *Decision) RetryAfter() time.Duration { return d.At.Sub(d.Now) }

// LimitStatus is the state of one limit for one key.
type LimitStatus struct {
	// Name is the limit's; Key is the value of its Per attribute, or empty.
	Name, Key string
	// Cost is what this request takes from the limit.
	Cost int64
	// Limit is the most the limit holds, Remaining what is left of it now. Of what the
	// upstream has told Limit is zero; [Reservation.Reconcile] returns it.
	Limit, Remaining int64
	// ResetAfter is the time until the limit is full again.
	ResetAfter time.Duration
}

// isUnknown reports whether this is about an upstream that has told nothing yet.
func (s LimitStatus) isUnknown() bool { return s.Remaining < 0 }
