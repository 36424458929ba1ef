package decisions

import (
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// report is all that a run measured.
type report struct {
	Redis  string   `json:"redis_version"`
	Rounds int      `json:"rounds"`
	Slice  string   `json:"slice"`
	Pool   int      `json:"pool"`
	Cells  []result `json:"cells"`
	Memory []memory `json:"bytes_per_key"`
}

// result is what a contender did in one cell: medians over its turns.
type result struct {
	Name    string `json:"name"`
	Callers int    `json:"callers"`
	Keys    int    `json:"keys"`

	PerSecond float64       `json:"decisions_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	// CPU is Redis's, in microseconds per decision.
	CPU float64 `json:"redis_cpu_us_per_decision"`
	// Errors are those of all turns together, denials included.
	Errors   int    `json:"errors"`
	AnyError string `json:"error,omitempty"`

	// Decisions per second, over those of a reference in the same round.
	AgainstBare      float64 `json:"ratio_to_evalsha"`
	AgainstRedisRate float64 `json:"ratio_to_redis_rate"`
}

func summarize(name string, callers, keys int, turns []*slice) result {
	r := result{
		Name:      name,
		Callers:   callers,
		Keys:      keys,
		PerSecond: medianOf(turns, (*slice).perSecond),
		CPU:       medianOf(turns, (*slice).cpuPerDecision),
		P50:       medianOf(turns, func(s *slice) time.Duration { return harness.Percentile(s.latencies, 50) }),
		P99:       medianOf(turns, func(s *slice) time.Duration { return harness.Percentile(s.latencies, 99) }),
	}
	for _, turn := range turns {
		r.Errors += turn.errors
		if turn.err != nil {
			r.AnyError = turn.err.Error()
		}
	}
	return r
}

// ratio is the median over the rounds of how many decisions per second a
// contender made for each of the reference's. The two had their turns one soon
// after the other, so what else the machine was doing weighs on both.
func ratio(turns, reference []*slice) float64 {
	var ratios []float64
	for round := range min(len(turns), len(reference)) {
		if below := reference[round].perSecond(); below > 0 {
			ratios = append(ratios, turns[round].perSecond()/below)
		}
	}
	return harness.Median(ratios)
}

func medianOf[N harness.Number](turns []*slice, figure func(*slice) N) N {
	figures := make([]N, len(turns))
	for i, turn := range turns {
		figures[i] = figure(turn)
	}
	return harness.Median(figures)
}
