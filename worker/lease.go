package worker

import (
	"context"

	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// work runs the handler. The task's slots of concurrency limits are held until the
// handler has really ended, by a panic as well: asynq may give up on one that does
// not heed its context, but the calls of that one go on.
func (a *attempt) work(ctx context.Context) error {
	if r := a.reservation; r != nil {
		defer a.crowd.work()()
		held := context.WithoutCancel(ctx)
		r.Hold(held)
		defer a.release(held, r)
		defer a.settle(held, r)
		ctx = upstream.WithObserver(throttle.NewContext(ctx, r), a.heard)
	}
	return a.handler.ProcessTask(ctx, a.task)
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
