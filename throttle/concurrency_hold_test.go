package throttle_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// hold holds a reservation until the test ends.
func (b *testLimiter) hold(r *throttle.Reservation) {
	b.t.Helper()
	require.Equal(b.t, throttle.Granted, r.Outcome)
	r.Hold(b.t.Context())
	b.t.Cleanup(func() { _ = r.Release(context.Background()) })
}

// hourLong is as slots, with leases that no pause of the machine loses.
func hourLong(n int64) policy.Limit {
	limit := slots(n)
	limit.Lease = time.Hour
	return limit
}

func (b *testLimiter) renew() {
	b.t.Helper()
	require.NoError(b.t, throttle.RenewNow(b.limiter, "api"))
}

func isLost(r *throttle.Reservation) bool {
	select {
	case <-r.Lost():
		return true
	default:
		return false
	}
}

func TestHoldKeepsTheSlotBeyondItsLease(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, hourLong(5))
	one, two := b.ask("1", 0, "cost", "2"), b.ask("2", 0)
	idle := b.ask("3", 0)
	b.hold(one)
	b.hold(two)
	for i := range 5 {
		b.at(time.Duration(i) * time.Hour / 2)
		b.renew()
	}
	assert.Equal(t, int64(2), b.remaining(), "the one that nobody held has run out")
	assert.False(t, isLost(one) || isLost(two))
	assert.Nil(t, idle.Lost())
	b.release(one)
	assert.Equal(t, int64(4), b.remaining())
	b.at(2*time.Hour + time.Hour/2)
	b.renew()
	b.at(3 * time.Hour)
	b.renew()
	assert.Equal(t, int64(4), b.remaining(), "what was released is not renewed")
	b.release(two)
	assert.Empty(t, b.contents())
}

// A process that stood still for longer than its lease hears that others have its
// slot; it disturbs them neither by renewing nor by releasing.
func TestRenewalAfterOthersTookTheSlot(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, hourLong(1))
	asleep := b.ask("1", 0)
	b.hold(asleep)
	b.at(time.Hour)
	other := b.with(hourLong(1))
	taken := other.ask("2", 0)
	other.hold(taken)
	b.renew()
	assert.True(t, isLost(asleep))
	b.release(asleep)
	assert.Equal(t, int64(0), b.remaining())

	// When it becomes free, the renewal of a task that runs on has it again.
	again := b.with(hourLong(1))
	late := again.ask("2", 0)
	again.hold(late)
	other.renew()
	assert.True(t, isLost(taken), "another attempt of the task has it")
	again.release(late)
	other.renew()
	assert.Equal(t, int64(0), b.remaining())
	other.release(taken)
	assert.Equal(t, int64(1), b.remaining())
}

// Law 10: after an outage or a flush, running tasks take their slots again before
// others do.
func TestRenewalBringsBackWhatWasFlushed(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, hourLong(3))
	r := b.ask("1", 0, "cost", "2")
	b.hold(r)
	require.NoError(t, b.client.FlushDB(t.Context()).Err())
	b.renew()
	assert.Equal(t, int64(1), b.remaining())
	assert.False(t, isLost(r))
}

// While Redis can not be asked, a lease is lost no earlier than it may have run
// out: here that is an hour.
func TestLostIsNotSaidTooEarly(t *testing.T) {
	t.Parallel()
	server := throttletest.Embedded(t)
	limiter := newLimiter(t, server.Client(), "api", hourLong(1))
	r, err := limiter.Reserve(t.Context(), request(0))
	require.NoError(t, err)
	r.Hold(t.Context())
	require.NoError(t, server.Close())
	require.Error(t, throttle.RenewNow(limiter, "api"))
	assert.False(t, isLost(r))
	require.Error(t, r.Release(t.Context()), "and a release that failed says so")
}

// With real time: leases are renewed by themselves, and lost when that can not be.
func TestRenewalsKeepTheirOwnTime(t *testing.T) {
	t.Parallel()
	limit := slots(1)
	limit.Lease = policy.MinLease
	server := throttletest.Redis(t)
	limiter := newLimiter(t, server.Client(), "api", limit)
	r, err := limiter.Reserve(t.Context(), request(0))
	require.NoError(t, err)
	r.Hold(t.Context())
	ends := func() (at float64) { // its lease does, unless a pause was longer
		for _, lease := range server.Client().ZRevRangeWithScores(t.Context(), "rm:{api}:slots", 0, 0).Val() {
			at = lease.Score
		}
		return at
	}
	first := ends()
	require.Eventually(t, func() bool { return ends() > first }, throttle.Patience, 10*time.Millisecond)
	require.NoError(t, server.Close())
	select {
	case <-r.Lost():
	case <-time.After(throttle.Patience):
		t.Fatal("nobody said that the slot is lost")
	}
	_ = r.Release(t.Context())
}

// The end of Hold's context ends the renewals, and then the slot with its lease.
func TestHoldEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, hourLong(1))
	r := b.ask("1", 0)
	ctx, cancel := context.WithCancel(t.Context())
	r.Hold(ctx)
	cancel()
	require.Eventually(t, func() bool { return throttle.Held(b.limiter, "api") == 0 }, throttle.Patience, time.Millisecond)
	b.at(time.Hour)
	b.renew()
	assert.Equal(t, int64(1), b.remaining())
}

func TestCancelEndsHold(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, hourLong(1))
	r := b.ask("1", 0)
	r.Hold(t.Context())
	require.NoError(t, r.Cancel(t.Context()))
	assert.Zero(t, throttle.Held(b.limiter, "api"))
	assert.Equal(t, int64(1), b.remaining())
}

// Without a concurrency limit there is nothing to hold, and no call is made.
func TestHoldAndReleaseCostNothingWithoutConcurrency(t *testing.T) {
	t.Parallel()
	server := throttletest.Embedded(t)
	limiter := newLimiter(t, server.Client(), "api", bucket("b", 1, time.Second, 1))
	r, err := limiter.Reserve(t.Context(), request(0))
	require.NoError(t, err)
	require.NoError(t, server.Close()) // any call would fail
	r.Hold(t.Context())
	assert.Nil(t, r.Lost())
	require.NoError(t, r.Release(t.Context()))
	require.NoError(t, r.AwaitSlot(t.Context()))
}

// A slot that ends in this process goes to who waits here, in order of coming, at
// once and not after a pause.
func TestAwaitSlotInOrder(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limiter := newLimiter(t, server.Client(), "api", hourLong(1))
		running, err := limiter.Reserve(t.Context(), request(0))
		require.NoError(t, err)

		const waiters = 5
		granted := make(chan int)
		done := make(chan struct{})
		var all sync.WaitGroup
		for i := range waiters {
			r, err := limiter.Reserve(t.Context(), request(throttle.Patience))
			require.NoError(t, err)
			all.Go(func() {
				assert.NoError(t, r.AwaitSlot(t.Context()))
				assert.Equal(t, throttle.Granted, r.Outcome)
				granted <- i
				<-done
				assert.NoError(t, r.Release(t.Context()))
			})
			require.Eventually(t, func() bool { return throttle.Waiting(limiter, "api") == i+1 }, throttle.Patience, time.Millisecond)
		}
		require.NoError(t, running.Release(t.Context()))
		for i := range waiters {
			assert.Equal(t, i, <-granted)
			done <- struct{}{}
		}
		all.Wait()
	})
}

// A slot that ends elsewhere is found by asking.
func TestAwaitSlotFindsWhatEndsElsewhere(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, hourLong(1))
	running := b.ask("1", 0)
	elsewhere := b.with(hourLong(1))
	waiting := elsewhere.ask("2", throttle.Patience)
	granted := make(chan error)
	go func() { granted <- waiting.AwaitSlot(t.Context()) }()
	require.Eventually(t, func() bool { return throttle.Waiting(elsewhere.limiter, "api") == 1 }, throttle.Patience, time.Millisecond)
	b.release(running)
	require.NoError(t, <-granted)
	assert.Equal(t, throttle.Granted, waiting.Outcome)
}

func TestAwaitSlotGivesUp(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("rate", 1, time.Hour, 2), hourLong(1))
	b.ask("1", 0)

	began := time.Now()
	patient := b.ask("2", 200*time.Millisecond)
	require.NoError(t, patient.AwaitSlot(t.Context()))
	assert.Equal(t, throttle.Denied, patient.Outcome)
	assert.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
	assert.Zero(t, throttle.Waiting(b.limiter, "api"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.ask("2", time.Minute).AwaitSlot(ctx), context.Canceled)

	// Another limit is in the way for longer: no use waiting.
	free := b.with(bucket("rate", 1, time.Hour, 2), hourLong(2))
	free.ask("2", 0)
	far := b.ask("3", time.Minute)
	require.Equal(t, "rate", far.HeldBy)
	require.NoError(t, far.AwaitSlot(t.Context()))
	assert.Equal(t, throttle.Denied, far.Outcome)
}

// Law 1 and law 6, judged by a counter of the test's own: 200 callers at three
// limiters are never more than the slots at once, and can use them all.
func TestConcurrencyUnderOverload(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const atOnce, callers, tasks = 20, 200, 400
		limit := hourLong(atOnce)
		var left atomic.Int64
		left.Store(tasks)
		inside := make(chan struct{}, atOnce)
		full := make(chan struct{}) // closed when all slots were in use at once
		fill := sync.OnceFunc(func() { close(full) })
		task := func() {
			select {
			case inside <- struct{}{}:
			default:
				assert.Fail(t, "more than there are slots")
				return
			}
			if len(inside) == atOnce {
				fill()
			}
			select {
			case <-full:
			case <-time.After(throttle.Patience):
				assert.Fail(t, "some slot was never used")
			}
			outlast(time.Millisecond)
			<-inside
		}
		work := func(limiter *throttle.Limiter) bool {
			r, err := limiter.Reserve(t.Context(), request(throttle.Patience))
			if !assert.NoError(t, err) || !assert.NoError(t, r.AwaitSlot(t.Context())) || !assert.NoError(t, r.Wait(t.Context())) {
				return false
			}
			r.Hold(t.Context())
			task()
			return assert.NoError(t, r.Release(t.Context()))
		}

		var limiters []*throttle.Limiter
		for range 3 {
			limiters = append(limiters, newLimiter(t, server.Client(), "api", limit))
		}
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for left.Add(-1) >= 0 && work(limiters[i%len(limiters)]) {
				}
			})
		}
		all.Wait()
		assert.Zero(t, server.Client().Exists(t.Context(), "rm:{api}:slots").Val())
	})
}
