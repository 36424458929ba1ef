package harness

import (
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
