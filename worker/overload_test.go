package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

func TestOverloadReject(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: policy.OverloadReject})
		heard := make(chan time.Duration, 3)
		r.config.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			if overload := (*throttle.OverloadError)(nil); errors.As(err, &overload) {
				heard <- overload.Delay
			}
		})
		all := newJournal()
		r.serve(all.ProcessTask)
		began := time.Now()
		r.enqueue(2)
		r.enqueue(2, asynq.MaxRetry(0))
		all.wait(t, 1)
		r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
		for _, message := range r.archived() {
			assert.Contains(t, message, `overload: policy "api" is held by "rate", start expected at `)
			assert.Contains(t, message, "the policy parks no tasks")
		}
		assert.Len(t, all.ran(), 1)
		assert.Zero(t, r.queue().Retry)
		assert.Empty(t, r.lineKeys(), "nobody stands in line")
		delay := <-heard
		assert.LessOrEqual(t, delay, time.Hour)
		assert.GreaterOrEqual(t, delay, time.Hour-time.Since(began))
	})
}

// What is dropped is gone, also for asynq's record of completed tasks, and a unique
// task may be enqueued again.
func TestOverloadDrop(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: policy.OverloadDrop})
		metrics := prometheus.NewRegistry()
		r.config.Registerer = metrics
		all := newJournal()
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t, 1)
		r.enqueue(2, asynq.Retention(time.Hour))
		r.enqueue(1, asynq.MaxRetry(0), asynq.Unique(time.Hour))
		r.eventually("three counted", func() bool { return totals(t, metrics)["rampmeter_overload_total"] == 3 })
		assert.EqualValues(t, 3, totals(t, metrics)["rampmeter_overload_total api drop"])
		r.eventually("all gone", func() bool { return r.queue().Size == 0 && r.queue().Completed == 0 })
		assert.Zero(t, r.queue().Archived)
		assert.Len(t, all.ran(), 1)
		assert.Zero(t, r.reported.Load(), "nothing failed")
		r.enqueue(1, asynq.Unique(time.Hour))
	})
}

func TestOverloadDegrade(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: policy.OverloadDegrade})
		all, degraded := newJournal(), newJournal()
		var failed atomic.Bool
		r.config.Fallbacks = map[string]asynq.Handler{"api": asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			_, reserved := throttle.FromContext(ctx)
			assert.False(t, reserved, "a fallback takes nothing from the limits")
			if failed.CompareAndSwap(false, true) {
				return asynq.SkipRetry
			}
			return degraded.ProcessTask(ctx, task)
		})}
		r.serve(all.ProcessTask)
		r.enqueue(5, asynq.MaxRetry(0))
		all.wait(t, 1)
		degraded.wait(t, 3)
		r.eventually("the others done", func() bool { return r.queue().Size == r.queue().Archived })
		assert.Equal(t, []string{asynq.SkipRetry.Error()}, r.archived(), "a fallback's error is the task's")
		assert.Len(t, all.ran(), 1)
	})
}

func TestFallbacksAreChecked(t *testing.T) {
	t.Parallel()
	limiter, err := throttle.New(throttletest.Embedded(t).Client(), &policy.Config{Policies: []policy.Policy{
		{Name: "api", Limits: per(time.Hour), Overload: policy.OverloadDegrade},
		{Name: "other", Limits: per(time.Hour)},
	}})
	require.NoError(t, err)
	_, err = worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter})
	require.EqualError(t, err, `worker: policy "api" has overload: degrade, but there is no fallback for it; `+
		`register one as MiddlewareConfig.Fallbacks["api"], or choose another strategy`)

	fallbacks := map[string]asynq.Handler{"api": asynq.NotFoundHandler(), "apj": asynq.NotFoundHandler()}
	_, err = worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter, Fallbacks: fallbacks})
	require.EqualError(t, err, `worker: there is a fallback for "apj", but no such policy`)

	delete(fallbacks, "apj")
	m, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter, Fallbacks: fallbacks})
	require.NoError(t, err)
	require.NoError(t, m.Close())
}

// The program may decide for each task, and knows what it decides on.
func TestOverloadByFunction(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: policy.OverloadReject})
		began := time.Now().Truncate(time.Microsecond)
		r.config.OnOverload = func(_ context.Context, task *asynq.Task, overload *throttle.OverloadError) policy.Overload {
			assert.Equal(t, "api", overload.Policy)
			assert.Equal(t, "rate", overload.HeldBy)
			assert.Positive(t, overload.Place.Position)
			assert.WithinRange(t, overload.Place.Expected.Add(-overload.Delay), began, time.Now(), "when it asked")
			return policy.Overload(task.Headers()["then"])
		}
		all, degraded := newJournal(), newJournal()
		r.config.Fallbacks = map[string]asynq.Handler{"api": degraded}
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t, 1)
		for _, then := range []string{"park", "park", "reject", "drop", "degrade", "anything"} {
			r.enqueueWith(map[string]string{"then": then})
		}
		degraded.wait(t, 1)
		r.eventually("each as it was decided", func() bool {
			queue := r.queue()
			return queue.Retry == 2 && queue.Archived == 2 && queue.Size == 4
		})
		assert.Len(t, all.ran(), 1)
		assert.NotEmpty(t, r.lineKeys())
	})
}

// Only what would start too late is decided on: the others stand in line.
func TestMaxDeferBoundsTheLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		for _, strategy := range []policy.Overload{"", policy.OverloadReject} {
			r := newTestServer(t, server, policy.Policy{
				Limits: per(time.Hour), MaxWait: -1, MaxDefer: 150 * time.Minute, Overload: strategy,
			})
			require.NoError(t, server.Client().FlushDB(t.Context()).Err())
			all := newJournal()
			stop := r.serve(all.ProcessTask)
			r.enqueue(8)
			r.eventually("two in line, five archived", func() bool {
				queue := r.queue()
				return queue.Retry == 2 && queue.Archived == 5
			})
			all.wait(t, 1)
			for _, message := range r.archived() {
				assert.Contains(t, message, "as number 3 in line; max_defer is 2h30m0s")
			}
			stop()
		}
	})
}

// A deadline that can not be met is told at once, and to those alone that can not meet
// it; a timeout is no deadline.
func TestDeadlinesAreToldAtOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(time.Hour), MaxWait: -1})
		all := newJournal()
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t, 1)
		r.enqueue(1, asynq.Timeout(10*time.Minute))
		r.eventually("one in line", func() bool { return r.queue().Retry == 1 })
		deadline := time.Now().Add(150 * time.Minute).Truncate(time.Second)
		r.enqueue(1, asynq.Deadline(deadline), asynq.Timeout(10*time.Minute))
		r.eventually("two in line", func() bool { return r.queue().Retry == 2 })
		r.enqueue(1, asynq.Deadline(deadline))
		r.enqueue(1, asynq.Deadline(deadline), asynq.Timeout(10*time.Minute))
		r.enqueue(1, asynq.Deadline(deadline), asynq.MaxRetry(0))
		r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
		for _, message := range r.archived() {
			assert.Contains(t, message, `policy "api" is held by "rate", start expected at `)
			assert.Contains(t, message, "; the task's deadline is "+deadline.UTC().Format("2006-01-02T15:04:05.000Z"))
		}
		r.enqueue(1)
		r.eventually("three in line", func() bool { return r.queue().Retry == 3 })
		assert.Len(t, all.ran(), 1)
	})
}

// A slot within max_wait is of no use to a task that asynq would fail before.
func TestNobodyWaitsBeyondItsDeadline(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(30 * time.Minute), MaxWait: time.Hour})
		all := newJournal()
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t, 1)
		r.enqueue(1, asynq.Deadline(time.Now().Add(20*time.Minute)))
		r.eventually("archived, with time left", func() bool { return r.queue().Archived == 1 })
		assert.Contains(t, r.archived()[0], "the task's deadline is ")
		r.enqueue(1, asynq.Timeout(10*time.Minute))
		r.eventually("parked", func() bool { return r.queue().Retry == 1 })
	})
}

// Nobody knows when a slot of a concurrency limit is free: a task waits for one as long
// as it may, and only then is given up.
func TestOverloadOfSlots(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const wait = 200 * time.Millisecond
		r := newTestServer(t, server, policy.Policy{Limits: atOnce(1), MaxWait: wait, Overload: policy.OverloadReject})
		running := r.holdSlot()
		all := newJournal()
		serving, _ := r.run(all)
		began := time.Now()
		r.enqueue(2, asynq.MaxRetry(0))
		r.eventually("given up", func() bool { return r.queue().Archived == 2 })
		assert.GreaterOrEqual(t, time.Since(began), wait)
		assert.Contains(t, r.archived()[0], `held by "slots"`)

		patient := *r.limiter.Config().Policy("api")
		patient.MaxWait = time.Hour
		require.NoError(t, serving.Update(r.instead(patient)))
		r.enqueue(1)
		r.eventually("another asks", func() bool { return r.standing() == 1 })
		require.NoError(t, running.Release(t.Context()))
		all.wait(t, 1)
		r.eventually("done", func() bool { return r.queue().Size == 2 })
		assert.Equal(t, 2, r.queue().Archived)
	})
}
