package throttle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestWaitReturnsAtTheSlot(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		policy := throttletest.UniqueName(t)
		limiter := newLimiter(t, server.Client(), policy, bucket("b", 20, time.Second, 1))
		began := time.Now()
		for range 6 {
			r, err := limiter.Reserve(t.Context(), throttle.Request{Policy: policy, MaxWait: time.Minute})
			require.NoError(t, err)
			require.NoError(t, r.Wait(t.Context()))
		}
		assert.GreaterOrEqual(t, time.Since(began), 250*time.Millisecond, "no start is early")
	})
}

// Law 11: a process waits for as long as Redis says, whatever its own clock.
func TestWaitGoesByRedisClock(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), throttle.Patience)
	defer cancel()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		server, _ := throttletest.EmbeddedAt(t, time.Now().Add(off)) // where its clock stands
		limiter := newLimiter(t, server.Client(), "api", bucket("b", 20, time.Second, 1))
		for i := range 3 {
			began := time.Now()
			r, err := limiter.Reserve(ctx, request(time.Minute))
			require.NoError(t, err)
			require.NoError(t, r.Wait(ctx), "off by %s", off)
			assert.GreaterOrEqual(t, time.Since(began), time.Duration(i)*time.Second/20, "off by %s", off)
		}
	}
}

func TestWaitTellsADenial(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("b", 1, time.Hour, 1))
	b.reserve(0)
	err := b.reserve(time.Second).Wait(t.Context())
	throttled := (*throttle.ThrottledError)(nil)
	require.ErrorAs(t, err, &throttled)
	assert.Equal(t, time.Hour, throttled.RetryAfter)
	assert.EqualError(t, err,
		`throttled: policy "api" is held by "b"; deferred until 2026-01-05T13:00:00.000Z, no retry spent`)
}

// A caller that stops waiting gives its slot back.
func TestWaitCancelsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("b", 1, time.Hour, 1))
	b.reserve(0)
	r := b.reserve(2 * time.Hour)
	require.Equal(t, throttle.Granted, r.Outcome)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Wait(ctx), context.Canceled)
	assert.Equal(t, time.Hour, b.reserve(0).RetryAfter())
}

// outlast lets this process be late for a slot, as a stalled one would be.
func outlast(d time.Duration) { <-time.After(d) }

// Law 1 when a process stalls: a slot it is late for is given up for a new one, and to
// the nanosecond no other. Of a log it is by half of what slots keep from each other.
func TestLateStartReservesAnew(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit       policy.Limit
		late, apart time.Duration
	}{
		"bucket":      {bucket("b", 1, time.Minute, 1), throttle.Lateness, time.Minute},
		"spacing":     {spacing("l", 1, time.Minute), throttle.Lateness, time.Minute},
		"log":         {slidingLog("l", 1, time.Minute), throttle.Lateness / 2, time.Minute + throttle.Lateness},
		"brief log":   {slidingLog("l", 1, time.Second), throttle.Lateness / 4, time.Second + 10*time.Millisecond},
		"briefer log": {slidingLog("l", 1, 100*time.Millisecond), throttle.Lateness / 4, 101 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestLimiter(t, test.limit)
			r := b.reserve(time.Hour)
			late, _ := throttle.IsLate(r, test.late)
			assert.False(t, late)
			late, _ = throttle.IsLate(r, test.late+1)
			assert.True(t, late)
			b.at(time.Second) // by the time it wakes, Redis's clock has gone on
			throttle.Stall(r, test.late+1)
			require.NoError(t, r.Wait(t.Context()))
			assert.Equal(t, noon.Add(time.Second), r.At.UTC(), "the slot is where the start is")
			assert.Equal(t, noon.Add(test.apart+time.Second), b.reserve(time.Hour).At.UTC(), "and paid once")
		})
	}
}

// A start that could fall into the next window is no start of this one.
func TestNoStartAfterItsWindow(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, window("w", 5, time.Minute, policy.AnchorClock))
	b.at(time.Minute - time.Millisecond)
	r := b.reserve(0)
	require.Equal(t, throttle.Granted, r.Outcome)
	_, late := throttle.IsLate(r, time.Millisecond-1)
	assert.False(t, late)
	_, late = throttle.IsLate(r, time.Millisecond)
	assert.True(t, late)
	throttle.Stall(r, time.Millisecond)
	b.at(time.Minute)
	require.NoError(t, r.Wait(t.Context()))
	assert.Equal(t, noon.Add(time.Minute), r.At.UTC())
	assert.Equal(t, int64(4), r.Limits[0].Remaining)
}

// Who can keep no slot at all starts nothing.
func TestWaitGivesUpWhenAlwaysLate(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, window("w", 5, time.Minute, policy.AnchorClock))
	b.at(time.Minute - time.Microsecond) // and there Redis's clock stands
	err := b.reserve(0).Wait(t.Context())
	throttled := (*throttle.ThrottledError)(nil)
	require.ErrorAs(t, err, &throttled)
	assert.Equal(t, throttle.HeldByLateness, throttled.HeldBy)
	d, err := b.limiter.Peek(t.Context(), request(0))
	require.NoError(t, err)
	assert.Equal(t, int64(5), d.Limits[0].Remaining, "and keeps nothing")
}
