package harness

import (
	"math"
	"slices"
	"time"
)

// Number is what there is a median of.
type Number interface {
	float64 | time.Duration
}

// Median returns the middle one, the mean of the two middle ones, or 0 of none.
func Median[N Number](figures []N) N {
	if len(figures) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(figures))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Percentile returns what p percent of the sorted durations do not exceed, or 0 of none.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(float64(len(sorted)) * p / 100))
	return sorted[max(1, rank)-1]
}
