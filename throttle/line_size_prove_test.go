//go:build prove

package throttle_test

import (
	"testing"

	"github.com/rampmeter/rampmeter/internal/prove"
)

// What a million parked tasks take, and what a wake costs among them.
func TestProveLongLines(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		perTask, commands := longLines(t, n)
		return []prove.Figure{
			prove.AtMost("memory of a parked task", perTask, 250, "bytes"),
			prove.AtMost("commands for a wake among them", float64(commands), 20, "commands"),
		}
	})
}
