package throttle_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// The vectors by which GCRA implementations are compared: limit 5, one a second.
// A retry of 0 stands for granted.
func TestTokenBucketVectors(t *testing.T) {
	t.Parallel()
	limit := bucket("b", 1, time.Second, 5)
	limit.Cost = "cost"
	b := newTestLimiter(t, limit)
	for i, step := range []struct {
		at        float64
		cost      int
		remaining int64
		reset     float64
		retry     float64
		never     bool
	}{
		{0, 6, 0, 0, 0, true},
		{0, 1, 4, 1, 0, false},
		{0, 1, 3, 2, 0, false},
		{0, 1, 2, 3, 0, false},
		{0, 1, 1, 4, 0, false},
		{0, 1, 0, 5, 0, false},
		{0, 1, 0, 5, 1, false},
		{3, 1, 2, 3, 0, false},
		{3.1, 1, 1, 3.9, 0, false},
		{4, 1, 1, 4, 0, false},
		{8, 1, 4, 1, 0, false},
		{9.5, 1, 4, 1, 0, false},
		{9.5, 2, 2, 3, 0, false},
		{9.5, 5, 2, 3, 3, false},
		{15, 6, 0, 0, 0, true},
	} {
		b.at(time.Duration(step.at * float64(time.Second)))
		r := b.reserve(0, "cost", strconv.Itoa(step.cost))
		if step.never {
			assert.Equal(t, throttle.Never, r.Outcome, "step %d", i)
			continue
		}
		assert.Equal(t, step.retry == 0, r.Outcome == throttle.Granted, "step %d", i)
		assert.InDelta(t, step.retry, r.RetryAfter().Seconds(), 1e-9, "step %d", i)
		assert.Equal(t, step.remaining, r.Limits[0].Remaining, "step %d", i)
		assert.InDelta(t, step.reset, r.Limits[0].ResetAfter.Seconds(), 1e-9, "step %d", i)
	}
}

// A third of a second is no whole number of microseconds; nothing of it may be
// lost or gained over a thousand tokens.
func TestTokenBucketIsExact(t *testing.T) {
	t.Parallel()
	b := newTestLimiterOn(t, throttletest.Redis(t), bucket("b", 3, time.Second, 1))
	for i := range 1000 {
		r := b.reserve(time.Hour)
		require.Equal(t, throttle.Granted, r.Outcome)
		now := r.At.Sub(noon)
		exact := time.Duration(i) * time.Second / 3
		require.GreaterOrEqual(t, now, exact.Truncate(time.Microsecond))
		require.LessOrEqual(t, now, exact+time.Duration(i+1)*time.Microsecond)
	}
}
