package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// atOnce is a limit of n slots, whose leases outlast the stalls of a busy machine.
func atOnce(n int64) []policy.Limit {
	return []policy.Limit{{Name: "slots", Algorithm: policy.Concurrency, Slots: n}}
}

// free tells how many slots are.
func (r *testServer) free() int64 {
	r.t.Helper()
	return r.peek().Limits[0].Remaining
}

// S10 in a worker, by a counter of the handler's own: so many at once, whatever
// the worker's concurrency, and tasks on their last attempt run as well.
func TestS10HandlersAtOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const slots = 3
		r := newTestServer(t, server, policy.Policy{Limits: atOnce(slots), MaxWait: 20 * time.Second})
		r.config.Concurrency = 20
		all := newRounds(slots)
		r.enqueue(30)
		r.enqueue(30, asynq.MaxRetry(0))
		r.serve(all.ProcessTask)
		all.wait(t, 60)
		r.allEnd()
		assert.Equal(t, slots, all.most)
		assert.Len(t, all.ran(), 60)
		assert.EqualValues(t, slots, r.free())
	})
}

// asynq fact 5: asynq gives up on a handler that does not heed its context, but it
// runs on. Its slot is renewed until it has really ended.
func TestSlotEndsWithTheHandler(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limits := atOnce(1)
		limits[0].Lease = policy.MinLease
		r := newTestServer(t, server, policy.Policy{Limits: limits, MaxWait: time.Hour})
		stubborn, second, end := make(chan *throttle.Reservation, 1), make(chan struct{}), make(chan struct{})
		stop := r.serve(func(ctx context.Context, task *asynq.Task) error {
			if task.Payload() != nil {
				close(second)
				return nil
			}
			reservation, _ := throttle.FromContext(ctx)
			stubborn <- reservation
			<-end
			return nil
		})
		r.enqueue(1, asynq.Timeout(time.Second))
		first := <-stubborn
		r.eventually("asynq gave up", func() bool { return r.queue().Retry == 1 })
		leaseEnds := func() time.Time { return time.Now().Add(r.peek().RetryAfter()) }
		unrenewed := leaseEnds().Add(policy.MinLease)
		r.add(asynq.NewTask("call", []byte("second")))
		isOn := false
		r.eventually("it goes on, or the second runs", func() bool {
			select {
			case <-second:
				return true
			default:
				isOn = leaseEnds().After(unrenewed)
				return isOn
			}
		})
		if !isOn { // a slow machine may lose a lease as short as this, but says so
			select {
			case <-first.Lost():
			case <-time.After(patience):
				t.Fatal("the second handler started while the first still ran, and had its slot")
			}
		}
		close(end)
		<-second
		stop()
		assert.EqualValues(t, 1, r.free())
	})
}

func TestSlotEndsWithAPanicAndAnError(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func() error{
		"panic": func() error { panic("as handlers may") },
		"error": func() error { return errors.New("a real failure") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: atOnce(2)})
			r.serve(func(context.Context, *asynq.Task) error { return ends() })
			r.enqueue(1)
			r.eventually("a failure", func() bool { return r.queue().Retry == 1 })
			assert.EqualValues(t, 2, r.free())
		})
	}
}

// A task that finds no slot within its policy's wait stands in line and is woken as
// soon as one is free, and not when the lease of somebody else ends, nor by asynq's
// own time. It costs no retry.
func TestFreedSlotWakesTheNext(t *testing.T) { scenario(freeSlot).onEachServer(t) }

func freeSlot(t *testing.T, server *throttletest.Server) time.Duration {
	limits := atOnce(1)
	limits[0].Lease = policy.MaxLease
	r := newTestServer(t, server, policy.Policy{Limits: limits, MaxWait: 50 * time.Millisecond})
	running := r.holdSlot()
	all := newJournal()
	r.serve(all.ProcessTask)
	began := time.Now()
	r.enqueue(1)
	r.parked(1)
	task := r.retrying()[0]
	assert.WithinRange(t, task.NextProcessAt, began.Add(5*time.Minute), time.Now().Add(5*time.Minute+time.Second),
		"a lost line is no reason to wait for a lease")
	assert.Zero(t, task.Retried+int(r.reported.Load()))
	assert.Contains(t, task.LastErr, `throttled: policy "api" is held by "slots"; deferred until `)
	return all.took(t, 1, func() { require.NoError(t, running.Release(t.Context())) })
}

// A task's ID is its own in its queue only.
func TestTasksOfTwoQueuesHaveTheirOwnSlots(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: atOnce(2)})
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
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: atOnce(2), MaxWait: time.Hour})
	r.config.ShutdownTimeout = time.Hour
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
	stop()
	r.eventually("no slot is kept", func() bool { return r.free() == 2 })
	assert.Zero(t, r.queue().FailedTotal)
}
