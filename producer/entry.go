package producer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// Entry is a task to be: what a line of a batch or an entry of a schedule says.
// Only Type is needed; zero values leave the choice to asynq.
type Entry struct {
	Type    string
	Payload []byte
	// Attributes become the task's headers.
	Attributes map[string]string
	// Queue is "default" when empty.
	Queue string
	// ID keeps the task from being enqueued twice while a task of this ID is
	// there. Empty means a random one.
	ID string
	// MaxRetry is asynq's 25 when nil.
	MaxRetry *int
	// Timeout bounds one run of the task, in whole seconds; asynq's 30 minutes
	// when neither it nor Deadline is set.
	Timeout time.Duration
	// Deadline is the instant by which the task must be done.
	Deadline time.Time
	// ProcessAt or ProcessIn, not both, delay the task. Zero means now.
	ProcessAt time.Time
	ProcessIn time.Duration
	// Unique refuses another task of the same type, payload and queue for so
	// long. Whole seconds.
	Unique time.Duration
	// Retention is how long the finished task stays readable. Whole seconds.
	Retention time.Duration
}

// FieldErrors is every problem of one entry, in the order of its fields. A problem's path is
// the field's name as a batch line has it, or empty for the entry as a whole.
type FieldErrors []policy.Problem

// Error joins the problems in one line.
func (e FieldErrors) Error() string {
	texts := make([]string, len(e))
	for i, problem := range e {
		texts[i] = problem.String()
	}
	return strings.Join(texts, "; ")
}

func (e *FieldErrors) add(field, problem string, args ...any) {
	*e = append(*e, policy.Problem{Path: field, Message: fmt.Sprintf(problem, args...)})
}

// orNil keeps an empty list from becoming a non-nil error.
func (e FieldErrors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// Validate reports all problems of the entry as FieldErrors. asynq would take
// some of them without a word, and do something else than what they say.
func (e *Entry) Validate() error {
	var problems FieldErrors
	e.validate(&problems)
	return problems.orNil()
}

func (e *Entry) validate(problems *FieldErrors) {
	if strings.TrimSpace(e.Type) == "" {
		problems.add("type", "missing; name the task type, or give url for an %s", httprequest.TaskType)
	}
	if e.Type == httprequest.TaskType {
		if _, err := httprequest.Decode(e.Payload); err != nil {
			problems.add("payload", "%s", reason(err))
		}
	}
	if _, ok := e.Attributes[""]; ok {
		problems.add("attributes", "must not have an empty name")
	}
	if e.Queue != "" && strings.TrimSpace(e.Queue) == "" {
		problems.add("queue", "must not be blank")
	}
	if e.ID != "" && strings.TrimSpace(e.ID) == "" {
		problems.add("id", "must not be blank")
	}
	if e.MaxRetry != nil && *e.MaxRetry < 0 {
		problems.add("max_retry", "%d is below 0", *e.MaxRetry)
	}
	validateSeconds(problems, "timeout", e.Timeout)
	validateSeconds(problems, "unique", e.Unique)
	validateSeconds(problems, "retention", e.Retention)
	if !e.Deadline.IsZero() && time.Until(e.Deadline) <= 0 {
		problems.add("deadline", "%s is in the past", e.Deadline.Format(time.RFC3339))
	}
	if e.ProcessIn < 0 {
		problems.add("process_in", "%s is below 0s", e.ProcessIn)
	}
	if e.ProcessIn != 0 && !e.ProcessAt.IsZero() {
		problems.add("process_in", "excludes process_at; give one of them")
	}
}

// validateSeconds is for durations that asynq cuts down to whole seconds: half a
// second would become none, and no timeout at all.
func validateSeconds(problems *FieldErrors, field string, d time.Duration) {
	if d < 0 || !asynqfacts.IsKept(d) {
		problems.add(field, "%s must be whole seconds above 0; asynq keeps no finer", d)
	}
}

// reason is the last part of an error that begins with what the reader knows
// already.
func reason(err error) string {
	return strings.TrimPrefix(err.Error(), httprequest.ErrInvalid.Error()+": ")
}

// Task returns the asynq task that the entry describes. The entry must be valid.
func (e *Entry) Task() *asynq.Task {
	var opts []asynq.Option
	add := func(set bool, opt asynq.Option) {
		if set {
			opts = append(opts, opt)
		}
	}
	add(e.Queue != "", asynq.Queue(e.Queue))
	add(e.ID != "", asynq.TaskID(e.ID))
	if e.MaxRetry != nil {
		opts = append(opts, asynq.MaxRetry(*e.MaxRetry))
	}
	add(e.Timeout != 0, asynq.Timeout(e.Timeout))
	add(!e.Deadline.IsZero(), asynq.Deadline(e.Deadline))
	add(!e.ProcessAt.IsZero(), asynq.ProcessAt(e.ProcessAt))
	add(e.ProcessIn != 0, asynq.ProcessIn(e.ProcessIn))
	add(e.Unique != 0, asynq.Unique(e.Unique))
	add(e.Retention != 0, asynq.Retention(e.Retention))
	return asynq.NewTaskWithHeaders(e.Type, e.Payload, e.Attributes, opts...)
}

// AlreadyThere reports whether an enqueue failed because the task is in the
// queue already: its ID is taken, or its uniqueness lasts. Doing the same work
// twice, as after an interrupted batch, ends here and is no failure.
func AlreadyThere(err error) bool {
	return errors.Is(err, asynq.ErrTaskIDConflict) || errors.Is(err, asynq.ErrDuplicateTask)
}
