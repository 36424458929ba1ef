package harness

import (
	"testing"

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
