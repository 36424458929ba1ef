package backlog

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestInversions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		calls string
		want  float64
		ok    bool
	}{
		"none":            {"", 0, false},
		"one":             {"a1", 0, false},
		"in order":        {"a1 a2 a3", 0, true},
		"with a gap":      {"a1 a9 a10", 0, true},
		"a pair":          {"a2 a1 a3", 0.5, true},
		"backwards":       {"a3 a2 a1", 1, true},
		"each lane alone": {"a9 b1 a10 b2", 0, true},
		"in one of two":   {"a1 b2 a2 b1", 0.5, true},
		"one far behind":  {"a2 a3 a4 a1 a5", 0.25, true},
		"the same again":  {"a1 a1", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := inversions(&turn{scenario: scenarioOf("tenants"), seen: observation{calls: callsOf(tt.calls)}})
			assert.Equal(t, tt.ok, ok)
			assert.InDelta(t, tt.want, got, 1e-9)
		})
	}
}

func TestSmallTenantsAreDoneWithTheirLastTask(t *testing.T) {
	t.Parallel()
	s := &scenario{lanes: []lane{{"a", 3}, {"b", 1}, {"c", 1}}}
	seen := observation{tasks: 5, began: at(-1000), calls: callsOf("a0 b3 a1 c4 a2")}
	got, ok := smallDone(&turn{scenario: s, seen: seen})
	assert.True(t, ok)
	assert.InDelta(t, 1.003, got, 1e-9)

	seen.calls = callsOf("a0 b3 b3 a1 a2")
	_, ok = smallDone(&turn{scenario: s, seen: seen})
	assert.False(t, ok, "one of them was never called, whatever the other did")
}
