// Package asynqfacts is what Rampmeter depends on of asynq beyond what asynq documents:
// texts of errors, defaults that are not exported, and habits. The tests run asynq and
// fail when one of them is another.
//
// Some habits need no code here. They are in the tests alone: where asynq puts a task that
// is woken or put back, that an error from a last attempt archives, what a handler's
// context tells, and who hears of an error that is no failure.
package asynqfacts

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// DefaultConcurrency is how many tasks a server runs at once whose Config does not say.
func DefaultConcurrency() int { return runtime.NumCPU() }

// LongestPause is how long a server that found its queues empty takes to look at them
// again, at most, by its Config's TaskCheckInterval: half that at least, and one and a half
// times that at most.
func LongestPause(taskCheckInterval time.Duration) time.Duration {
	if taskCheckInterval <= 0 {
		taskCheckInterval = time.Second
	}
	return taskCheckInterval + taskCheckInterval/2
}

// DuplicateReply is what asynq's scripts that enqueue reply for a unique task that is
// there already. Those for tasks that are not unique never do, and take it for success.
const DuplicateReply int64 = -1

// IsRunning reports whether an error of Inspector.RunTask says that the task is with a
// worker, or on its way back from one.
func IsRunning(err error) bool { return says(err, "task is already running") }

// IsPending reports whether an error of Inspector.RunTask says that the task is about to
// be handed to a worker.
func IsPending(err error) bool { return says(err, "task is already in pending") }

func says(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// IsGone reports whether an error says that there is no such task, or no such queue.
func IsGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// IsLaidAside reports whether a task is not to run any more, although Inspector.RunTask
// would run it: it is completed, or archived. One that asynq archived because its worker
// died during its last attempt is to run.
func IsLaidAside(task *asynq.TaskInfo) bool {
	return task.State == asynq.TaskStateCompleted ||
		task.State == asynq.TaskStateArchived && task.LastErr != asynq.ErrLeaseExpired.Error()
}

// IsLastAttempt reports whether asynq archives the task of a handler's context for any
// error but RevokeTask.
func IsLastAttempt(ctx context.Context) bool {
	retried, ok := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}

// MayBeDeadline reports whether the end of a handler's context may be its task's Deadline:
// asynq counts those in whole seconds, but an attempt's Timeout alone to the nanosecond.
func MayBeDeadline(ends time.Time) bool { return ends.Nanosecond() == 0 }

// IsKept reports whether asynq keeps a Timeout, Retention or Unique as it is: it cuts them
// down to whole seconds.
func IsKept(d time.Duration) bool { return d%time.Second == 0 }

// ToWholeSecond lengthens a delay so that it ends on a whole second. asynq drops the
// fraction of a retry's time, which would bring the task back too early.
func ToWholeSecond(now time.Time, d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return now.Add(d + time.Second - 1).Truncate(time.Second).Sub(now)
}

var generatedID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// IsGeneratedID reports whether an ID has the shape of those that asynq makes, which never
// come again.
func IsGeneratedID(id string) bool { return generatedID.MatchString(id) }
