package decisions

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func turnsOf(decisions ...int) []*slice {
	var turns []*slice
	for _, n := range decisions {
		turns = append(turns, &slice{decisions: n, elapsed: time.Second})
	}
	return turns
}

func TestRatioIsWithinEachRound(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		turns, reference []*slice
		want             float64
	}{
		// In the third round the whole machine was slow; the ratio does not show it.
		"a slow round":         {turnsOf(200, 220, 20), turnsOf(100, 110, 10), 2},
		"itself":               {turnsOf(7, 8), turnsOf(7, 8), 1},
		"a round without any":  {turnsOf(200, 5, 200), turnsOf(100, 0, 100), 2},
		"no reference at all":  {turnsOf(200), nil, 0},
		"reference is all bad": {turnsOf(200), turnsOf(0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.InDelta(t, tt.want, ratio(tt.turns, tt.reference), 1e-9)
		})
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	turns := turnsOf(100, 400, 200)
	for i, turn := range turns {
		turn.redisCPU = time.Duration(i+1) * time.Millisecond
		turn.latencies = []time.Duration{time.Duration(i+1) * 10}
	}
	turns[1].errors, turns[1].err = 3, errors.New("broken")

	r := summarize("x", 10, 1, turns)
	assert.InDelta(t, 200, r.PerSecond, 1e-9)
	assert.InDelta(t, 10, r.CPU, 1e-9, "the median of 10, 5 and 15 µs")
	assert.EqualValues(t, 20, r.P50)
	assert.EqualValues(t, 20, r.P99)
	assert.Equal(t, 3, r.Errors)
	assert.Equal(t, "broken", r.AnyError)
}

func TestDenialsAreReportedBeforeOtherErrors(t *testing.T) {
	t.Parallel()
	var whole slice
	whole.add(&slice{err: errors.New("first")})
	whole.add(&slice{err: errDenied})
	whole.add(&slice{err: errors.New("last")})
	whole.add(&slice{})
	assert.ErrorIs(t, whole.err, errDenied)
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	r := &report{
		Redis: "7.0.15", Rounds: 3, Slice: "1s", Pool: 20,
		Cells: []result{
			{Name: bareName, Callers: 1, Keys: 1, PerSecond: 20000.4, P50: 25040, P99: 1234567, CPU: 9.04, AgainstBare: 1, AgainstRedisRate: 1.6},
			{Name: "ours", Callers: 1, Keys: 1, PerSecond: 9000, AgainstBare: 0.45, AgainstRedisRate: 0.7, Errors: 2, AnyError: "denied"},
			{Name: bareName, Callers: 500, Keys: 100_000, AgainstBare: 1, AgainstRedisRate: 1.5},
			{Name: "ours", Callers: 500, Keys: 100_000, AgainstBare: 6.25, AgainstRedisRate: 9},
		},
		Memory: []memory{{Name: bareName}, {Name: "ours", Idle: 72, Full: 104.4}, {Name: "broken", Error: "no such"}},
	}
	var text strings.Builder
	require.NoError(t, r.writeText(&text))
	assert.Equal(t, `Redis 7.0.15; medians of 3 turns of 1s each; 20 connections per client.

1 caller on 1 key
                          decisions/s   p50     p99  Redis CPU  x EVALSHA  x redis_rate  errors
  EVALSHA return 1              20000  25µs  1.23ms     9.0 µs       1.00          1.60       0
  ours                           9000    0s      0s     0.0 µs       0.45          0.70       2
  ours failed with: denied

500 callers on 100000 keys
                          decisions/s  p50  p99  Redis CPU  x EVALSHA  x redis_rate  errors
  EVALSHA return 1                  0   0s   0s     0.0 µs       1.00          1.50       0
  ours                              0   0s   0s     0.0 µs       6.25          9.00       0

Decisions for each one of EVALSHA return 1
                          1 on 1 key  500 on 100000 keys
  EVALSHA return 1              1.00                1.00
  ours                          0.45                6.25

Decisions for each one of redis_rate
                          1 on 1 key  500 on 100000 keys
  EVALSHA return 1              1.60                1.50
  ours                          0.70                9.00

Bytes per key: idle is asked once; full is used up, at 1000 per 1h0m0s
                          idle  full
  ours                      72   104
  broken                     0     0
  broken failed with: no such
`, text.String())
}
