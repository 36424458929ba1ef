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

// Law 14: calls about a lease may arrive late and twice, in any order. What was released
// stays so, and what another attempt of the task holds stays its own.
func TestLateAndRepeatedCallsAboutALease(t *testing.T) {
	t.Parallel()
	const renew, release, again, steps = 0, 1, 2, 4
	names := []string{"renew", "release", "again"}
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newTestLimiterOn(t, server, slots(3))
		for order := range 3 * 3 * 3 * 3 {
			require.NoError(t, b.client.Del(t.Context(), "rm:{api}:slots").Err())
			b.at(0)
			b.ask("other", 0)
			first := b.ask("1", 0)
			holds, story := 1, "" // 1 for the first attempt, 2 for a later one, or 0
			for step := range steps {
				b.at(time.Duration(step+1) * time.Millisecond)
				call := order % 3
				order /= 3
				story += " " + names[call]
				switch call {
				case renew:
					has, err := throttle.RenewCall(t.Context(), first, time.Time{})
					require.NoError(t, err)
					assert.Equal(t, holds == 1, has, story)
				case release:
					require.NoError(t, throttle.ReleaseCall(t.Context(), first))
					if holds == 1 {
						holds = 0
					}
				case again:
					require.Equal(t, throttle.Granted, b.ask("1", 0).Outcome)
					holds = 2
				}
				assert.Equal(t, int64(2-min(holds, 1)), b.remaining(), story)
			}
		}
	})
}

// A lease that is gone comes back for a task that runs, but not by a call that was given
// up long ago.
func TestLeasesComeBackInTime(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(1))
	r := b.ask("1", 0)
	b.at(lease)
	for _, test := range []struct {
		late time.Duration
		back bool
	}{{0, false}, {time.Hour, false}, {-time.Microsecond, true}} {
		has, err := throttle.RenewCall(t.Context(), r, noon.Add(lease-test.late))
		require.NoError(t, err)
		assert.Equal(t, test.back, has, "late by %s", test.late)
	}
	assert.Zero(t, b.remaining())
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
		freed := make(chan struct{}, tasks+callers) // has one for each slot that was freed
		work := func(limiter *throttle.Limiter) bool {
			r, err := limiter.Reserve(t.Context(), request(0))
			for err == nil && r.Outcome == throttle.Denied {
				select { // all slots are in use, so one will be freed
				case <-freed:
				case <-time.After(throttle.Patience):
					return assert.Fail(t, "no slot was freed")
				}
				r, err = limiter.Reserve(t.Context(), request(0))
			}
			if !assert.NoError(t, err) || !assert.NoError(t, r.Wait(t.Context())) {
				return false
			}
			r.Hold(t.Context())
			task()
			err = r.Release(t.Context())
			freed <- struct{}{}
			return assert.NoError(t, err)
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
