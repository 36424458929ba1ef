package harness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		figures []float64
		want    float64
	}{
		"none":         {nil, 0},
		"one":          {[]float64{3}, 3},
		"odd":          {[]float64{9, 1, 5}, 5},
		"even":         {[]float64{4, 1, 2, 100}, 3},
		"one far away": {[]float64{1000, 1, 2}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.InDelta(t, tt.want, Median(tt.figures), 1e-9)
		})
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	upTo := func(n int) (all []time.Duration) {
		for i := range n {
			all = append(all, time.Duration(i+1))
		}
		return all
	}
	for name, tt := range map[string]struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		"none":          {nil, 50, 0},
		"one":           {[]time.Duration{7}, 99, 7},
		"lower of two":  {[]time.Duration{10, 20}, 50, 10},
		"higher of two": {[]time.Duration{10, 20}, 51, 20},
		"median":        {upTo(1001), 50, 501},
		"tail":          {upTo(1000), 99, 990},
		"least":         {upTo(1000), 0, 1},
		"all":           {upTo(1000), 100, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.want, Percentile(tt.sorted, tt.p))
		})
	}
}
