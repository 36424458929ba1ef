package decisions

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	upTo := func(n int, unit time.Duration) []time.Duration {
		var all []time.Duration
		for i := range n {
			all = append(all, time.Duration(i+1)*unit)
		}
		return all
	}
	for name, tt := range map[string]struct {
		recorded []time.Duration
		p        float64
		want     time.Duration
	}{
		"none":              {nil, 50, 0},
		"one":               {[]time.Duration{7}, 99, 7},
		"none at all":       {[]time.Duration{0, 0}, 50, 0},
		"a clock gone back": {[]time.Duration{-5}, 50, 0},
		"lower of two":      {[]time.Duration{10, 20}, 50, 10},
		"higher of two":     {[]time.Duration{10, 20}, 51, 20},
		"exact when small":  {upTo(100, 1), 99, 99},
		"median":            {upTo(1001, time.Microsecond), 50, 501 * time.Microsecond},
		"tail":              {upTo(1000, time.Millisecond), 99, 990 * time.Millisecond},
		"all":               {upTo(1000, time.Millisecond), 100, time.Second},
		"the longest":       {[]time.Duration{math.MaxInt64}, 50, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h histogram
			for _, d := range tt.recorded {
				h.record(d)
			}
			got := h.percentile(tt.p)
			assert.GreaterOrEqual(t, got, tt.want, "a percentile is never told too short")
			assert.LessOrEqual(t, got-tt.want, tt.want/64)
		})
	}
}

func TestBucketsAreNarrowAndInOrder(t *testing.T) {
	t.Parallel()
	last := -1
	for d := time.Duration(0); d < time.Hour && d >= 0; d += 1 + d/50 {
		bucket := bucketOf(d)
		assert.GreaterOrEqual(t, bucket, last)
		assert.GreaterOrEqual(t, topOf(bucket), d)
		assert.LessOrEqual(t, topOf(bucket)-d, d/64)
		assert.Equal(t, bucket, bucketOf(topOf(bucket)))
		assert.Equal(t, bucket+1, bucketOf(topOf(bucket)+1))
		last = bucket
	}
}

func TestHistogramsAddUp(t *testing.T) {
	t.Parallel()
	var a, b histogram
	a.record(10)
	b.record(20)
	b.record(30)
	a.add(&b)
	assert.Equal(t, 3, a.total)
	assert.EqualValues(t, 20, a.percentile(50))
	assert.EqualValues(t, 30, a.percentile(99))
}
