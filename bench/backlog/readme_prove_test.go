//go:build prove

package backlog

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
)

// figuresOf is what the bench tells of a scenario, by contender. None of Rampmeter's
// tasks is archived, on any machine.
func figuresOf(t *testing.T, scenario string, tasks int, only string) map[string]map[string]float64 {
	t.Helper()
	figures := map[string]map[string]float64{}
	for _, r := range measured(t, "-scenarios", scenario, "-tasks", strconv.Itoa(tasks), "-only", only)[0].Results {
		figures[r.Name] = r.Figures
		require.False(t, strings.HasPrefix(r.Name, "rampmeter") && r.Figures["archived"] > 0, r.Name)
	}
	return figures
}

// size is how many tasks a scenario has, in full or in short.
func size(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// README, «How it compares»: what becomes of a backlog of tenants.
func TestProveTenants(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		got := figuresOf(t, "tenants", size(6180, 1200), "no limit|tuned|rampmeter")
		figures := []prove.Figure{
			prove.AtMost("asynq without a limit: Redis commands per task", got["asynq, no limit"]["commands_per_task"], 14.5, ""),
			prove.AtLeast("retry-after error, attempts per one of parked lanes",
				got["retry-after, tuned"]["attempts_per_task"]/got["rampmeter, parked"]["attempts_per_task"], 3, "times"),
			prove.AtLeast("retry-after error, Redis commands per one of parked lanes",
				got["retry-after, tuned"]["commands_per_task"]/got["rampmeter, parked"]["commands_per_task"], 3, "times"),
		}
		for _, row := range []struct {
			name                          string
			attempts, commands, smallDone float64
		}{
			{"rampmeter, waiting", 1.01, 16.4, 40}, {"rampmeter, parked", 2, 39.5, 3}, {"rampmeter, parked at once", 1.02, 26, 1.5},
		} {
			own := got[row.name]
			figures = append(figures,
				prove.AtMost(row.name+": attempts per task", own["attempts_per_task"], row.attempts, ""),
				prove.AtMost(row.name+": Redis commands per task", own["commands_per_task"], row.commands, ""),
				prove.AtLeast(row.name+": quota used", 100*own["quota_used"], float64(size(99, 98)), "%"),
				prove.AtMost(row.name+": small tenants done", own["small_done_s"], row.smallDone, "s"),
				prove.AtMost(row.name+": lateness, 99 of 100 starts", own["slot_p99_ms"], 5, "ms"),
				// 20 ms of the rate, which is what a start may be late.
				prove.AtMost(row.name+": calls beyond burst and rate as they arrived", own["over"], 4, ""),
			)
		}
		return figures
	})
}

// The same for slots.
func TestProveSlots(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		got := figuresOf(t, "slots", size(1000, 300), "waiting$|parked$")
		var figures []prove.Figure
		for _, row := range []struct {
			name               string
			attempts, commands float64
		}{
			{"rampmeter, waiting", 1.01, 30}, {"rampmeter, parked", 2, 50},
		} {
			own := got[row.name]
			require.LessOrEqual(t, own["over"], 0.0, "%s: more calls at once than slots", row.name)
			figures = append(figures,
				prove.AtMost(row.name+": attempts per task", own["attempts_per_task"], row.attempts, ""),
				prove.AtMost(row.name+": Redis commands per task", own["commands_per_task"], row.commands, ""),
				prove.AtLeast(row.name+": slots busy", 100*own["quota_used"], 97, "%"),
			)
		}
		return figures
	})
}
