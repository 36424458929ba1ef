package backlog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPerTask(t *testing.T) {
	t.Parallel()
	parked := &parking{at: at(500), attempts: 120, commands: 3000, called: 20, bytes: 8000}
	for name, tt := range map[string]struct {
		seen               observation
		attempts, commands float64
	}{
		"all done":    {observation{tasks: 100, attempts: 220, commands: 5000, calls: callsAt(evenly(100, 0, 10))}, 2.2, 50},
		"never seen":  {observation{tasks: 100, attempts: 60, commands: 1500, cut: true, calls: callsAt(evenly(50, 0, 10))}, 1.2, 30},
		"cut when in": {observation{tasks: 100, attempts: 160, commands: 4000, cut: true, parked: parked, calls: callsAt(evenly(60, 0, 10))}, 2, 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turn := &turn{scenario: scenarioOf("tenants"), contender: contenderOf("rampmeter, parked"), seen: tt.seen}
			attempts, ok := attemptsPerTask(turn)
			assert.True(t, ok)
			assert.InDelta(t, tt.attempts, attempts, 1e-9)
			commands, ok := commandsPerTask(turn)
			assert.True(t, ok)
			assert.InDelta(t, tt.commands, commands, 1e-9)
		})
	}
	turn := &turn{contender: contenderOf("rampmeter, parked"), seen: observation{
		tasks: 100, commands: 4000, cut: true, parked: parked, calls: callsAt(evenly(60, 0, 10)),
	}}
	bytes, ok := bytesPerParked(turn)
	assert.True(t, ok)
	assert.InDelta(t, 100, bytes, 1e-9, "of the 80 that had not started")
	wake, ok := commandsPerWake(turn)
	assert.True(t, ok)
	assert.InDelta(t, 25, wake, 1e-9)

	_, ok = attemptsPerTask(&nothing)
	assert.False(t, ok, "there is nothing to reckon from")
}

var nothing = turn{seen: observation{tasks: 9, attempts: 3, cut: true}}

func TestLeftCountsTasksNotCalls(t *testing.T) {
	t.Parallel()
	got, ok := left(&turn{seen: observation{tasks: 5, archived: 1, calls: callsOf("a1 a2 a2 a2")}})
	assert.True(t, ok)
	assert.EqualValues(t, 2, got)
}

func TestAttemptsPeak(t *testing.T) {
	t.Parallel()
	seen := observation{
		parked: &parking{at: at(500)},
		tempo:  []pulse{{at(100), 1000}, {at(600), 3}, {at(900), 4}, {at(1599), 5}, {at(1600), 1}, {at(5000), 11}, {at(5000), 2}},
	}
	got, ok := attemptsPeak(&turn{seen: seen})
	assert.True(t, ok)
	assert.EqualValues(t, 13, got)
	seen.tempo = seen.tempo[:5]
	got, _ = attemptsPeak(&turn{seen: seen})
	assert.EqualValues(t, 12, got, "600 to 1599 ms")
}

func TestNobodyPeaksWhereNothingIsPutOff(t *testing.T) {
	t.Parallel()
	_, ok := attemptsPeak(&turn{seen: observation{tempo: []pulse{{noon.Add(time.Second), 4}}}})
	assert.False(t, ok)
}
