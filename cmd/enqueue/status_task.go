package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/worker"
)

// taskReport is where one task is. Its JSON names are read by programs.
type taskReport struct {
	Task      string      `json:"task"`
	Queue     string      `json:"queue"`
	Type      string      `json:"type"`
	State     string      `json:"state"`
	Retried   int         `json:"retried"`
	MaxRetry  int         `json:"max_retry"`
	LastError string      `json:"last_error,omitempty"`
	Policy    string      `json:"policy,omitempty"`
	Line      *lineReport `json:"line,omitempty"`
}

// lineReport is where it stands in line.
type lineReport struct {
	Lane     string    `json:"lane,omitempty"`
	Position int64     `json:"position"`
	HeldBy   string    `json:"held_by,omitempty"`
	Since    time.Time `json:"since"`
	Expected time.Time `json:"expected"`
	Asked    int64     `json:"asked"`
	Woken    bool      `json:"woken,omitempty"`
}

// readTasks finds the task with that ID in every queue: an ID is unique in one only.
func readTasks(ctx context.Context, s *session, id string) ([]taskReport, error) {
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	queues, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	var found []taskReport
	for _, queue := range queues {
		w, err := worker.Where(ctx, s.limiter, inspector, queue, id)
		if asynqfacts.IsGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, reportOf(w))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no task %q in any queue: it is done, was deleted, or never was", id)
	}
	return found, nil
}

func reportOf(w *worker.Whereabouts) taskReport {
	r := taskReport{
		Task: w.Task.ID, Queue: w.Task.Queue, Type: w.Task.Type, State: w.Task.State.String(),
		Retried: w.Task.Retried, MaxRetry: w.Task.MaxRetry, LastError: w.Task.LastErr, Policy: w.Policy,
	}
	if l := w.Line; l != nil {
		r.Line = &lineReport{
			Lane: l.Lane, Position: l.Position, HeldBy: l.HeldBy, Since: l.Since.UTC(),
			Expected: l.Expected.UTC(), Asked: l.Asked, Woken: l.Woken,
		}
	}
	return r
}

// print tells of the task in a few lines.
func (r *taskReport) print(w io.Writer, now time.Time) {
	say(w, "task %s of queue %s: %s, %s", r.Task, r.Queue, r.Type, r.State)
	say(w, "  retries: %d of %d", r.Retried, r.MaxRetry)
	switch {
	case r.Policy == "":
		say(w, "  no policy governs it")
	case r.Line == nil:
		say(w, "  policy: %s; it does not stand in line", r.Policy)
	case r.Line.Woken:
		say(w, "  policy: %s; its turn has come, it is on its way to a worker", r.Policy)
	default:
		lane := ""
		if r.Line.Lane != "" {
			lane = " of lane " + r.Line.Lane
		}
		say(w, "  policy: %s; number %d in line%s, since %s", r.Policy, r.Line.Position, lane, r.Line.Since.Format(time.RFC3339))
		say(w, "  held by: %s; expected to start in %s", orNobody(r.Line.HeldBy), inAbout(max(0, r.Line.Expected.Sub(now))))
		say(w, "  asked: %s", program.Counted(int(r.Line.Asked), "time"))
	}
	if r.LastError != "" {
		say(w, "  last error: %s", r.LastError)
	}
}

func orNobody(limit string) string {
	if limit == "" {
		return "those before it"
	}
	return limit
}

// printTasks writes what was found, as JSON or in words.
func printTasks(w io.Writer, tasks []taskReport, asJSON bool) error {
	if asJSON {
		return writeJSON(w, tasks)
	}
	for i := range tasks {
		tasks[i].print(w, time.Now())
	}
	return nil
}
