package backlog

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWriteText(t *testing.T) {
	t.Parallel()
	r := &report{
		Redis: "7.0.15", Workers: 2, Concurrency: 20, Rounds: 1,
		Scenarios: []*section{{
			Name: "one-lane", About: "one queue", Tasks: 9000, Limit: "300 per second", Ideal: 29.9,
			Results: []*result{
				{Name: "asynq, no limit", Figures: map[string]float64{
					"attempts_per_task": 1, "commands_per_task": 14.04, "commands_per_enqueue": 4, "archived": 0, "done_s": 0.61,
				}},
				{Name: "rampmeter, parked", Cut: true, Figures: map[string]float64{
					"attempts_per_task": 2.004, "commands_per_task": 44.2, "quota_used": 0.9876, "slot_p99_ms": 12.34, "archived": 3,
				}},
				{Name: "broken"},
			},
			LeftOut: []string{"BullMQ: there is no node"},
		}},
	}
	var text strings.Builder
	require.NoError(t, r.writeHead(&text))
	require.NoError(t, r.Scenarios[0].writeText(&text))
	assert.Equal(t, `Redis 7.0.15; 2 workers with 20 tasks each; medians of 1 turn.

one-lane: one queue, 9000 tasks at 300 per second, 29.9 s at best
                          attempts  commands  enqueue  quota used  late p99  archived  all done
  asynq, no limit             1.00      14.0      4.0           -         -         0     0.6 s
  rampmeter, parked           2.00      44.2        -      98.8 %   12.3 ms         3         -
  broken                         -         -        -           -         -         -         -
  rampmeter, parked was cut short
  left out: BullMQ: there is no node
`, text.String())
}

func TestMetricsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range metrics {
		assert.False(t, names[m.name], m.name)
		names[m.name] = true
	}
}
