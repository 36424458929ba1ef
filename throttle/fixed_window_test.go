package throttle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// The sequence that fixed-window libraries agree on: two per three seconds.
func TestS4FixedWindowSequence(t *testing.T) {
	t.Parallel()
	for _, anchor := range []policy.Anchor{policy.AnchorClock, policy.AnchorFirst} {
		t.Run(string(anchor), func(t *testing.T) {
			t.Parallel()
			b := newTestLimiter(t, window("w", 2, 3*time.Second, anchor))
			for i, step := range []struct {
				at        time.Duration
				granted   bool
				remaining int64
				reset     time.Duration
			}{
				{0, true, 1, 3 * time.Second},
				{0, true, 0, 3 * time.Second},
				{0, false, 0, 3 * time.Second},
				{3 * time.Second, true, 1, 3 * time.Second},
				{3 * time.Second, true, 0, 3 * time.Second},
				{5 * time.Second, false, 0, time.Second},
			} {
				b.at(step.at)
				r := b.reserve(0)
				assert.Equal(t, step.granted, r.Outcome == throttle.Granted, "step %d", i)
				assert.Equal(t, throttle.LimitStatus{
					Name: "w", Cost: 1, Limit: 2, Remaining: step.remaining, ResetAfter: step.reset,
				}, r.Limits[0], "step %d", i)
			}
		})
	}
}

func TestFixedWindowAnchors(t *testing.T) {
	t.Parallel()
	for anchor, secondWindow := range map[policy.Anchor]time.Duration{
		policy.AnchorClock: 10 * time.Second,
		policy.AnchorFirst: 17 * time.Second,
	} {
		t.Run(string(anchor), func(t *testing.T) {
			t.Parallel()
			b := newTestLimiter(t, window("w", 1, 10*time.Second, anchor))
			b.at(7 * time.Second)
			require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
			assert.Equal(t, noon.Add(secondWindow), b.reserve(0).At.UTC())
		})
	}
}

// Slots in a window ahead are spread over it: no herd when it opens.
func TestWindowsAheadAreSpread(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, window("w", 4, 4*time.Second, policy.AnchorClock))
	for range 4 {
		require.Equal(t, noon, b.reserve(0).At.UTC())
	}
	for i := range 8 {
		assert.Equal(t, noon.Add(time.Duration(4+i)*time.Second), b.reserve(time.Minute).At.UTC())
	}
	// The reach of a window limit is bounded, whatever the caller would wait.
	for range 64 * 4 {
		b.reserve(time.Hour)
	}
	assert.Equal(t, throttle.Denied, b.reserve(time.Hour).Outcome)
}
