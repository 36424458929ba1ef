package worker_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// atOnce is a limit of n slots, whose leases outlast the stalls of a busy machine.
func atOnce(n int64) []throttle.Limit {
	return []throttle.Limit{{Name: "slots", Algorithm: throttle.Concurrency, Slots: n}}
}

// free tells how many slots are.
func (r *testServer) free() int64 {
	r.t.Helper()
	d, err := r.limiter.Peek(r.t.Context(), throttle.Request{Policy: "api"})
	require.NoError(r.t, err)
	return d.Limits[0].Remaining
}

// S10 in a worker, by a counter of the handler's own: so many at once, whatever
// the worker's concurrency, and tasks on their last attempt run as well.
func TestS10HandlersAtOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const slots = 3
		r := newTestServer(t, server, throttle.Policy{Limits: atOnce(slots), MaxWait: 20 * time.Second})
		r.config.Concurrency = 20
		all := count(60)
		var running, most atomic.Int64
		r.enqueue(30)
		r.enqueue(30, asynq.MaxRetry(0))
		full := make(chan struct{})
		r.serve(func(ctx context.Context, task *asynq.Task) error {
			now := running.Add(1)
			defer running.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			if now == slots && all.runs.Load() == 0 {
				close(full)
			}
			select {
			case <-full: // all slots were in use
			case <-ctx.Done():
			}
			return all.ProcessTask(ctx, task)
		})
		all.wait(t)
		r.allEnd()
		assert.Equal(t, int64(slots), most.Load())
		assert.Equal(t, int64(60), all.runs.Load())
		assert.Equal(t, int64(slots), r.free())
	})
}

// asynq fact 5: asynq gives up on a handler that does not heed its context, but it
// runs on. Its slot is renewed until it has really ended.
func TestSlotEndsWithTheHandler(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limits := atOnce(1)
		limits[0].Lease = throttle.MinLease
		r := newTestServer(t, server, throttle.Policy{Limits: limits, MaxWait: time.Minute})
		var running atomic.Int64
		stubborn, end := make(chan struct{}), make(chan struct{})
		second := make(chan int64)
		stop := r.serve(func(_ context.Context, task *asynq.Task) error {
			now := running.Add(1)
			defer running.Add(-1)
			if task.Payload() == nil {
				close(stubborn)
				<-end
				return nil
			}
			second <- now
			return nil
		})
		r.enqueue(1, asynq.Timeout(time.Second))
		<-stubborn
		r.add(asynq.NewTask("call", []byte("second")))
		r.eventually("asynq gave up", func() bool { return r.queue().Retry == 1 })
		select {
		case <-second:
			t.Fatal("the second handler started while the first still ran")
		case <-time.After(2 * throttle.MinLease): // it would have run out by now
		}
		close(end)
		assert.Equal(t, int64(1), <-second)
		stop()
		assert.Equal(t, int64(1), r.free())
	})
}

func TestSlotEndsWithAPanic(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: atOnce(2)})
	r.serve(func(context.Context, *asynq.Task) error { panic("as handlers may") })
	r.enqueue(1)
	r.eventually("a failure", func() bool { return r.queue().Retry == 1 })
	assert.Equal(t, int64(2), r.free())
}

func TestSlotEndsWithAnError(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: atOnce(2)})
	r.serve(func(context.Context, *asynq.Task) error { return errors.New("a real failure") })
	r.enqueue(1)
	r.eventually("a failure", func() bool { return r.queue().Retry == 1 })
	assert.Equal(t, int64(2), r.free())
}

// A task that finds no slot within its policy's wait stands in line and is woken as
// soon as one is free, and not when the lease of somebody else ends, nor by asynq's
// own time. It costs no retry.
func TestFreedSlotWakesTheNext(t *testing.T) {
	t.Parallel()
	limits := atOnce(1)
	limits[0].Lease = throttle.MaxLease
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: limits, MaxWait: 50 * time.Millisecond})
	running, err := r.limiter.Reserve(t.Context(), throttle.Request{Policy: "api"})
	require.NoError(t, err)
	all := count(1)
	r.serve(all.ProcessTask)
	r.enqueue(1)
	r.eventually("deferred", func() bool { return r.queue().Retry == 1 })
	tasks := r.retrying()
	assert.Greater(t, time.Until(tasks[0].NextProcessAt), 20*time.Second)
	assert.LessOrEqual(t, time.Until(tasks[0].NextProcessAt), 6*time.Minute, "a lost line is no reason to wait for a lease")
	assert.Zero(t, tasks[0].Retried)
	assert.Contains(t, tasks[0].LastErr, `throttled: policy "api" is held by "slots"; deferred until `)
	require.NoError(t, running.Release(t.Context()))
	freed := time.Now()
	all.wait(t)
	assert.Less(t, time.Since(freed), 5*time.Second)
	assert.Zero(t, r.reported.Load())
}

// A task's ID is its own in its queue only.
func TestTasksOfTwoQueuesHaveTheirOwnSlots(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: atOnce(2)})
	r.config.Queues = map[string]int{"default": 1, "other": 1}
	started, end := make(chan struct{}), make(chan struct{})
	r.serve(func(context.Context, *asynq.Task) error {
		started <- struct{}{}
		<-end
		return nil
	})
	r.enqueue(1, asynq.TaskID("same"))
	r.enqueue(1, asynq.TaskID("same"), asynq.Queue("other"))
	<-started
	<-started
	assert.Zero(t, r.free())
	close(end)
}

// Shutdown ends the waits at once, and the slots of handlers that have finished.
func TestShutdownLeavesNoSlots(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: atOnce(2), MaxWait: time.Hour})
	started, end := make(chan struct{}, 6), make(chan struct{})
	stop := r.serve(func(context.Context, *asynq.Task) error {
		started <- struct{}{}
		<-end
		return nil
	})
	r.enqueue(6)
	<-started
	<-started
	r.eventually("all at work", func() bool { return r.queue().Active == 6 })
	close(end)
	assert.Less(t, stop(), 5*time.Second)
	assert.Equal(t, int64(2), r.free())
	assert.Zero(t, r.queue().FailedTotal)
}
