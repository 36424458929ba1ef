package throttle_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// The limiters that teams wrote themselves before, each as a policy. Those of one
// algorithm have their tests beside it.

// S1: a counter for each slice of time, as with INCR key:second and EXPIRE.
func TestS1CounterPerTimeSlice(t *testing.T) {
	t.Parallel()
	limit := window("second", 10, time.Second, policy.AnchorClock)
	limit.Per = "ip"
	b := newTestLimiter(t, limit)
	for second := range 3 {
		b.at(time.Duration(second)*time.Second + 300*time.Millisecond)
		for n := range 12 {
			for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
				granted := b.reserve(0, "ip", ip).Outcome == throttle.Granted
				assert.Equal(t, n < 10, granted, "second %d, request %d", second, n)
			}
		}
	}
	b.clock.Advance(time.Second)
	assert.Empty(t, b.contents(), "no key is left for ever")
}

// S2: one counter that the first hit lets expire.
func TestS2SingleCounterWithExpiry(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, window("counter", 2, time.Minute, policy.AnchorFirst))
	b.at(17 * time.Second)
	require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
	b.at(76 * time.Second)
	require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
	r := b.reserve(0)
	assert.Equal(t, throttle.Denied, r.Outcome)
	assert.Equal(t, time.Second, r.RetryAfter(), "a minute after the first hit, not the last")
	b.at(77 * time.Second)
	assert.Empty(t, b.contents(), "it has expired by itself")
	assert.Equal(t, throttle.Granted, b.reserve(0).Outcome)
}

// S5: fixed windows with several rules: all must pass, else none counts, and each
// answers for itself.
func TestS5SeveralFixedWindows(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t,
		window("second", 2, time.Second, policy.AnchorClock), window("minute", 3, time.Minute, policy.AnchorClock))
	for i, step := range []struct {
		at             time.Duration
		granted        bool
		second, minute int64 // remaining
		heldBy         string
	}{
		{0, true, 1, 2, ""},
		{0, true, 0, 1, ""},
		{0, false, 0, 1, "second"},
		{time.Second, true, 1, 0, ""},
		{time.Second, false, 1, 0, "minute"},
		{2 * time.Second, false, 2, 0, "minute"},
		{time.Minute, true, 1, 2, ""},
	} {
		b.at(step.at)
		r := b.reserve(0)
		assert.Equal(t, step.granted, r.Outcome == throttle.Granted, "step %d", i)
		assert.Equal(t, step.second, r.Limits[0].Remaining, "step %d", i)
		assert.Equal(t, step.minute, r.Limits[1].Remaining, "step %d", i)
		assert.Equal(t, step.heldBy, r.HeldBy, "step %d", i)
	}
}

// S8: a token bucket by burst, refill time and refill amount, refilled lazily, that
// expires when full.
func TestS8TokenBucketWithRefillAmount(t *testing.T) {
	t.Parallel()
	limit := bucket("bucket", 3, 500*time.Millisecond, 10)
	limit.Refill, limit.Cost = policy.RefillInterval, "take"
	b := newTestLimiter(t, limit)
	for i, step := range []struct {
		at        time.Duration
		take      int
		granted   bool
		remaining int64
		retry     time.Duration
	}{
		{0, 10, true, 0, 0},
		{0, 1, false, 0, 500 * time.Millisecond},
		{499 * time.Millisecond, 1, false, 0, time.Millisecond},
		{500 * time.Millisecond, 4, false, 3, 500 * time.Millisecond},
		{500 * time.Millisecond, 2, true, 1, 0},
		{time.Second, 4, true, 0, 0},
		{1700 * time.Millisecond, 3, true, 0, 0},
	} {
		b.at(step.at)
		r := b.reserve(0, "take", strconv.Itoa(step.take))
		assert.Equal(t, step.granted, r.Outcome == throttle.Granted, "step %d", i)
		assert.Equal(t, step.remaining, r.Limits[0].Remaining, "step %d", i)
		assert.Equal(t, step.retry, r.RetryAfter(), "step %d", i)
	}
	b.at(1500*time.Millisecond + 4*500*time.Millisecond)
	assert.Empty(t, b.contents(), "full, it is gone")
}
