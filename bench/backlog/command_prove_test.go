//go:build prove

package backlog

import (
	"testing"

	"github.com/rampmeter/rampmeter/internal/prove"
)

func TestProveFigures(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		of := measuredTenants(t, "200/s")
		figures := []prove.Figure{
			// Of these, none is what enqueueing costs.
			prove.AtMost("commands of plain asynq for a task", of["asynq, no limit"]["commands_per_task"], 15.5, "commands"),
		}
		for _, name := range []string{"rampmeter, waiting", "rampmeter, parked", "rampmeter, parked at once"} {
			figures = append(figures, prove.AtMost(name+": calls above the limit as they arrive", of[name]["over"], 20, "calls"))
		}
		return figures
	})
}
