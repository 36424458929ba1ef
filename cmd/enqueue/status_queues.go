package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// queueReport is one queue and its tasks by state.
type queueReport struct {
	Queue     string `json:"queue"`
	Paused    bool   `json:"paused,omitempty"`
	Pending   int    `json:"pending"`
	Active    int    `json:"active"`
	Scheduled int    `json:"scheduled"`
	Retry     int    `json:"retry"`
	Archived  int    `json:"archived"`
	Completed int    `json:"completed"`
	// Deferred are those of Scheduled and Retry that a limit holds back.
	Deferred int `json:"deferred"`
	// AtLeast tells that not all tasks were looked at for Deferred.
	AtLeast bool `json:"deferred_at_least,omitempty"`
	// NextDeferred is when the soonest of them comes back.
	NextDeferred *time.Time `json:"next_deferred,omitempty"`
}

// deferredMark begins the last error of a task that a worker has deferred.
const deferredMark = "throttled: "

// readQueues reads all queues, and of each at most scan tasks a state.
func readQueues(ctx context.Context, inspector *asynq.Inspector, scan int) ([]queueReport, error) {
	names, err := inspector.Queues()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	queues := []queueReport{} // [] and not null in JSON
	for _, name := range names {
		info, err := inspector.GetQueueInfo(name)
		if errors.Is(err, asynq.ErrQueueNotFound) {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		q := queueReport{
			Queue: name, Paused: info.Paused,
			Pending: info.Pending, Active: info.Active, Scheduled: info.Scheduled,
			Retry: info.Retry, Archived: info.Archived, Completed: info.Completed,
		}
		if err := q.countDeferred(ctx, inspector.ListRetryTasks, info.Retry, scan); err != nil {
			return nil, err
		}
		if err := q.countDeferred(ctx, inspector.ListScheduledTasks, info.Scheduled, scan); err != nil {
			return nil, err
		}
		queues = append(queues, q)
	}
	return queues, nil
}

// countDeferred looks through a state's tasks, soonest first. asynq's calls take
// no context, so it is asked between them.
func (q *queueReport) countDeferred(ctx context.Context, list func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error), total, scan int) error {
	if total > scan {
		q.AtLeast = true
	}
	pageSize := min(scan, 500)
	for page, seen := 1, 0; seen < min(total, scan); page++ {
		if err := ctx.Err(); err != nil {
			return errors.New("interrupted")
		}
		tasks, err := list(q.Queue, asynq.PageSize(pageSize), asynq.Page(page))
		if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
			return err
		}
		if len(tasks) == 0 {
			return nil // others are at work, too
		}
		for _, task := range tasks[:min(len(tasks), scan-seen)] {
			q.count(task)
		}
		seen += len(tasks)
	}
	return nil
}

func (q *queueReport) count(task *asynq.TaskInfo) {
	if !strings.HasPrefix(task.LastErr, deferredMark) {
		return
	}
	q.Deferred++
	at := task.NextProcessAt.UTC()
	if q.NextDeferred == nil || at.Before(*q.NextDeferred) {
		q.NextDeferred = &at
	}
}

// cells are the queue's in the table.
func (q *queueReport) cells(now time.Time) string {
	name, deferred, next := q.Queue, fmt.Sprint(q.Deferred), "-"
	if q.Paused {
		name += " (paused)"
	}
	if q.AtLeast {
		deferred += "+"
	}
	if q.NextDeferred != nil {
		next = "now"
		if wait := q.NextDeferred.Sub(now); wait > 0 {
			next = "in " + inAbout(wait)
		}
	}
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s",
		name, q.Pending, q.Active, q.Scheduled, q.Retry, q.Archived, deferred, next)
}
