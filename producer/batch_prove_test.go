//go:build prove

package producer_test

import (
	"testing"

	"github.com/rampmeter/rampmeter/internal/prove"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// farthest is how far from its place the line is that has strayed most.
func farthest(order []int) (most float64) {
	for place, line := range order {
		most = max(most, float64(line-place), float64(place-line))
	}
	return most
}

// A line can be overtaken for as long as one call is slow, which no number bounds; but a
// batch in no order at all would be far off everywhere.
func TestProveBatches(t *testing.T) {
	t.Parallel()
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		tasks := 4000
		if testing.Short() {
			tasks = 500
		}
		order := enqueueByBatch(t, throttletest.Redis(t), tasks)
		inLine, calls := joinByBatch(t, throttletest.Redis(t), tasks)
		return []prove.Figure{
			prove.AtMost("a task of a batch strays in the queue", farthest(order), 250, "places"),
			prove.AtMost("a task of a batch strays in line", farthest(inLine), 200, "places"),
			prove.AtMost("calls to park a task of a batch", float64(calls)/float64(tasks), 4./3, "each"),
			prove.AtMost("attempts of a batch into a busy line", batchIntoABusyLine(t, tasks, 100), 1.1, "each"),
		}
	})
}
