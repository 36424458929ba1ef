package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// inLine is how many keys the waiting line of the server's policy has, but for the name
// of who leads it.
func (r *testServer) inLine() int {
	r.t.Helper()
	keys, err := r.limiter.Redis().Keys(r.t.Context(), "rm:{api}/line*").Result()
	require.NoError(r.t, err)
	n := 0
	for _, key := range keys {
		if !strings.HasSuffix(key, "/leader") {
			n++
		}
	}
	return n
}

// overloads returns what was counted, by policy and strategy.
func overloads(t *testing.T, metrics prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "rampmeter_overload_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			counted[strings.Join(labels, " ")] = metric.GetCounter().GetValue()
		}
	}
	return counted
}

func TestOverloadReject(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: throttle.OverloadReject})
		var heard sync.Map
		r.config.ErrorHandler = asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			if overload := (*throttle.OverloadError)(nil); errors.As(err, &overload) {
				heard.Store(overload.HeldBy, overload.Delay)
			}
		})
		all := count(1)
		r.serve(all.ProcessTask)
		r.enqueue(2)
		r.enqueue(2, asynq.MaxRetry(0))
		all.wait(t)
		r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
		for _, message := range r.archived() {
			assert.Contains(t, message, `overload: policy "api" is held by "rate", start expected at `)
			assert.Contains(t, message, "the policy parks no tasks")
		}
		assert.EqualValues(t, 1, all.runs.Load())
		assert.Zero(t, r.queue().Retry)
		assert.Zero(t, r.inLine(), "nobody stands in line")
		delay, ok := heard.Load("rate")
		require.True(t, ok, "the program hears of it")
		assert.InDelta(t, time.Hour.Seconds(), delay.(time.Duration).Seconds(), 60)
	})
}

// What is dropped is gone, also for asynq's record of completed tasks, and a unique
// task may be enqueued again.
func TestOverloadDrop(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: throttle.OverloadDrop})
		metrics := prometheus.NewRegistry()
		r.config.Registerer = metrics
		all := count(1)
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t)
		r.enqueue(2, asynq.Retention(time.Hour))
		r.enqueue(1, asynq.MaxRetry(0), asynq.Unique(time.Hour))
		r.eventually("three counted", func() bool { return overloads(t, metrics)["api drop"] == 3 })
		assert.Len(t, overloads(t, metrics), 1)
		r.eventually("all gone", func() bool { return r.queue().Size == 0 && r.queue().Completed == 0 })
		assert.Zero(t, r.queue().Archived)
		assert.EqualValues(t, 1, all.runs.Load())
		assert.Zero(t, r.reported.Load(), "nothing failed")
		r.enqueue(1, asynq.Unique(time.Hour))
	})
}

func TestOverloadDegrade(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: throttle.OverloadDegrade})
		all, degraded := count(1), count(3)
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
		all.wait(t)
		degraded.wait(t)
		r.eventually("the others done", func() bool { return r.queue().Size == r.queue().Archived })
		assert.Equal(t, []string{asynq.SkipRetry.Error()}, r.archived(), "a fallback's error is the task's")
		assert.EqualValues(t, 1, all.runs.Load())
	})
}

func TestFallbacksAreChecked(t *testing.T) {
	t.Parallel()
	limiter, err := throttle.New(throttletest.Embedded(t).Client(), &throttle.Config{Policies: []throttle.Policy{
		{Name: "api", Limits: per(time.Hour), Overload: throttle.OverloadDegrade},
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
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Hour), MaxWait: -1, Overload: throttle.OverloadReject})
		r.config.OnOverload = func(_ context.Context, task *asynq.Task, overload *throttle.OverloadError) throttle.Overload {
			assert.Equal(t, "api", overload.Policy)
			assert.Equal(t, "rate", overload.HeldBy)
			assert.Positive(t, overload.Place.Position)
			assert.WithinDuration(t, time.Now().Add(overload.Delay), overload.Place.Expected, time.Minute)
			return throttle.Overload(task.Headers()["then"])
		}
		all, degraded := count(1), count(1)
		r.config.Fallbacks = map[string]asynq.Handler{"api": degraded}
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t)
		for _, then := range []string{"park", "park", "reject", "drop", "degrade", "anything"} {
			r.enqueueWith(map[string]string{"then": then})
		}
		degraded.wait(t)
		r.eventually("each as it was decided", func() bool {
			queue := r.queue()
			return queue.Retry == 2 && queue.Archived == 2 && queue.Size == 4
		})
		assert.EqualValues(t, 1, all.runs.Load())
		assert.Positive(t, r.inLine())
	})
}

// Only what would start too late is decided on: the others stand in line.
func TestMaxDeferBoundsTheLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		for _, strategy := range []throttle.Overload{"", throttle.OverloadReject} {
			r := newTestServer(t, server, throttle.Policy{
				Limits: per(time.Minute), MaxWait: -1, MaxDefer: 150 * time.Second, Overload: strategy,
			})
			require.NoError(t, server.Client().FlushDB(t.Context()).Err())
			all := count(1)
			stop := r.serve(all.ProcessTask)
			r.enqueue(8)
			r.eventually("two in line, five archived", func() bool {
				queue := r.queue()
				return queue.Retry == 2 && queue.Archived == 5
			})
			all.wait(t)
			for _, message := range r.archived() {
				assert.Contains(t, message, "as number 3 in line; max_defer is 2m30s")
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
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Minute), MaxWait: -1})
		all := count(1)
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t)
		r.enqueue(1, asynq.Timeout(10*time.Second))
		r.eventually("one in line", func() bool { return r.queue().Retry == 1 })
		deadline := time.Now().Add(150 * time.Second).Truncate(time.Second)
		r.enqueue(1, asynq.Deadline(deadline), asynq.Timeout(10*time.Second))
		r.eventually("two in line", func() bool { return r.queue().Retry == 2 })
		r.enqueue(1, asynq.Deadline(deadline))
		r.enqueue(1, asynq.Deadline(deadline), asynq.Timeout(10*time.Second))
		r.enqueue(1, asynq.Deadline(deadline), asynq.MaxRetry(0))
		r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
		for _, message := range r.archived() {
			assert.Contains(t, message, `policy "api" is held by "rate", start expected at `)
			assert.Contains(t, message, "; the task's deadline is "+deadline.UTC().Format("2006-01-02T15:04:05.000Z"))
		}
		r.enqueue(1)
		r.eventually("three in line", func() bool { return r.queue().Retry == 3 })
		assert.EqualValues(t, 1, all.runs.Load())
	})
}

// asynq's contexts tell whether a task may have a deadline, on which missedDeadline
// rests: it has whole seconds then, and no look at the task is needed otherwise.
func TestAsynqCountsDeadlinesInSeconds(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: perSecond(100, 100)})
	parts := make(chan int, 1)
	r.serve(func(ctx context.Context, _ *asynq.Task) error {
		ends, _ := ctx.Deadline()
		parts <- ends.Nanosecond()
		return nil
	})
	deadline := asynq.Deadline(time.Now().Add(time.Hour))
	for _, options := range [][]asynq.Option{{deadline}, {deadline, asynq.Timeout(time.Minute)}, {deadline, asynq.Timeout(2 * time.Hour)}} {
		r.enqueue(1, options...)
		assert.Zero(t, <-parts)
	}
	for _, options := range [][]asynq.Option{nil, {asynq.Timeout(time.Minute)}} {
		r.enqueue(1, options...)
		assert.NotZero(t, <-parts)
	}
}

// A slot within max_wait is of no use to a task that asynq would fail before.
func TestNobodyWaitsBeyondItsDeadline(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Minute), MaxWait: time.Hour})
		all := count(1)
		r.serve(all.ProcessTask)
		r.enqueue(1)
		all.wait(t)
		r.enqueue(1, asynq.Deadline(time.Now().Add(20*time.Second)))
		r.eventually("archived, with time left", func() bool { return r.queue().Archived == 1 })
		assert.Contains(t, r.archived()[0], "the task's deadline is ")
		r.enqueue(1, asynq.Timeout(10*time.Second))
		r.eventually("parked", func() bool { return r.queue().Retry == 1 })
	})
}

// Nobody knows when a slot of a concurrency limit is free: a task waits for one as long
// as it may, and only then is given up.
func TestOverloadOfSlots(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		slots := []throttle.Limit{{Name: "at-once", Algorithm: throttle.Concurrency, Slots: 1}}
		const wait = 400 * time.Millisecond
		r := newTestServer(t, server, throttle.Policy{Limits: slots, MaxWait: wait, Overload: throttle.OverloadReject})
		running, proceed := make(chan struct{}, 3), make(chan struct{})
		r.serve(func(context.Context, *asynq.Task) error {
			running <- struct{}{}
			<-proceed
			return nil
		})
		r.enqueue(1)
		<-running
		began := time.Now()
		r.enqueue(2, asynq.MaxRetry(0))
		r.eventually("given up", func() bool { return r.queue().Archived == 2 })
		assert.GreaterOrEqual(t, time.Since(began), wait)
		assert.Contains(t, r.archived()[0], `held by "at-once"`)
		r.enqueue(1)
		r.eventually("another asks", func() bool { return r.inLine() > 0 })
		close(proceed)
		<-running
		r.eventually("done", func() bool { return r.queue().Size == 2 })
		assert.EqualValues(t, 2, r.queue().Archived)
	})
}
