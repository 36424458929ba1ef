package worker

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// work runs the handler. The task's slots of concurrency limits are held until the
// handler has really ended, by a panic as well: asynq may give up on one that does
// not heed its context, but the calls of that one go on.
func (a *attempt) work(ctx context.Context, next asynq.Handler) error {
	if r := a.reservation; r != nil {
		held := context.WithoutCancel(ctx)
		r.Hold(held)
		defer a.release(held, r)
		defer a.settle(held, r)
		ctx = upstream.WithObserver(throttle.NewContext(ctx, r), a.heard)
	}
	return next.ProcessTask(ctx, a.task)
}

// release ends the task's slots. Where that fails they end with their leases.
func (a *attempt) release(ctx context.Context, r *throttle.Reservation) {
	select {
	case <-r.Lost():
		a.log.Warn("a task ran without its slot for a time, which others may have had",
			zap.String("policy", a.policy.Name), zap.String("task_id", taskName(ctx)))
	default:
	}
	if err := r.Release(ctx); err != nil {
		a.log.Warn("could not end a task's slot, which ends with its lease",
			zap.String("policy", a.policy.Name), zap.Error(err))
	}
}

// A task that found no free slot here comes back after a time between these.
const (
	shortestAway = 500 * time.Millisecond
	longestAway  = 3 * time.Second
)

// lacksSlot reports whether a concurrency limit held the task back. When a slot is
// free depends on tasks, not on time: then the end of a lease, which is the instant
// of the decision, says little, for most tasks end long before it.
func (a *attempt) lacksSlot(r *throttle.Reservation) bool {
	for i := range a.policy.Limits {
		limit := &a.policy.Limits[i]
		if limit.Name == r.HeldBy && limit.Algorithm == throttle.Concurrency {
			return r.Outcome == throttle.Denied
		}
	}
	return false
}

// tryAgainSoon makes a denial one for a short time of the task's own.
func tryAgainSoon(r *throttle.Reservation, denied *throttle.ThrottledError) *throttle.ThrottledError {
	denied.RetryAfter = shortestAway + rand.N(longestAway-shortestAway)
	denied.Until = r.Now.Add(denied.RetryAfter)
	return denied
}

// taskName tells a task from all others: its ID is unique in its queue only, and
// two tasks must not be taken for one that asks again for its own slot.
func taskName(ctx context.Context) string {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return ""
	}
	queue, _ := asynq.GetQueueName(ctx)
	return queue + "/" + id
}
