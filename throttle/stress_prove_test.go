//go:build prove

package throttle_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// stressTime is how long each limit is put under stress, and which share of it is to be
// used by then.
func stressTime(short float64) (time.Duration, float64) {
	if testing.Short() {
		return 3 * time.Second, short
	}
	return time.Minute, 0.995
}

// 200 callers in four processes want more than the limit allows, all the time: by their
// own clocks no more start than that, and hardly any of it is left unused.
func TestProveStress(t *testing.T) {
	const late = throttle.Lateness
	length, least := stressTime(0.95)
	inAny := func(period time.Duration) func([]time.Time) int {
		return func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, period) }
	}
	// By the callers' clocks starts may be closer together than their slots.
	byClocks := map[string]judged{
		"token_bucket":    {most: 20 + int64(stressRate*late/time.Second)},
		"interval_bucket": {most: 2 * stressRate, count: inAny(time.Second - late)},
		"fixed_window_first": {most: stressRate, count: func(starts []time.Time) int {
			return throttletest.MaxPerOpenedWindow(starts, time.Second-late)
		}},
		"spacing":        {most: 1 + int64(stressRate*late/time.Second)},
		"sliding_window": {most: stressRate, count: inAny(time.Second - late)},
	}
	for _, judge := range stressed() {
		t.Run(judge.limit.Name, func(t *testing.T) {
			prove.Figures(t, func(t *testing.T) []prove.Figure {
				runs := puts(t, stress{
					Redis: throttletest.Redis(t).Addr(), Limits: []policy.Limit{judge.limit}, Until: time.Now().Add(length),
				})
				require.NotEmpty(t, runs)
				slots := slotsOf(runs, judge.limit.Name)
				if judge.limit.Anchor == policy.AnchorFirst { // whose first start may have been given up
					assert.LessOrEqual(t, throttletest.MaxInAnyInterval(slots, time.Second), 2*stressRate)
				} else {
					assert.LessOrEqual(t, int64(judge.count(slots)), judge.most, "slots")
				}
				var starts []time.Time
				for _, r := range runs {
					require.GreaterOrEqual(t, r.Start, 1000*r.Slot, "a start before its slot")
					starts = append(starts, time.Unix(0, r.Start))
				}
				own := byClocks[judge.limit.Name]
				most, count := cmp.Or(own.most, judge.most), own.count
				if count == nil {
					count = judge.count
				}
				return []prove.Figure{
					prove.AtMost("most at once by the callers' clocks", float64(count(starts)), float64(most), "starts"),
					prove.AtLeast("share used", throttletest.Used(starts, 1, stressRate, time.Second), least*usable(judge.limit), ""),
				}
			})
		})
	}
}

// The same for slots that tasks hold: never more run than there are, and slots are kept
// busy.
func TestProveStressOfSlots(t *testing.T) {
	length, least := stressTime(0.9)
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		runs := puts(t, stress{
			Redis: throttletest.Redis(t).Addr(), Until: time.Now().Add(length), Task: 500 * time.Millisecond,
			Limits: []policy.Limit{{Name: "slots", Algorithm: policy.Concurrency, Slots: stressSlots}},
		})
		require.NotEmpty(t, runs)
		assert.LessOrEqual(t, atOnce(runs), stressSlots)
		return []prove.Figure{prove.AtLeast("share of the slots' time used", inUse(runs, stressSlots), least, "")}
	})
}

// atOnce is how many of the runs ran at one time, at most.
func atOnce(runs []run) int {
	type event struct{ at, change int64 }
	var events []event
	for _, r := range runs {
		events = append(events, event{r.Start, 1}, event{r.End, -1})
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change))
	})
	var running, most int64
	for _, e := range events {
		running += e.change
		most = max(most, running)
	}
	return int(most)
}

// inUse is the share of the slots' time, while there were runs to start, that runs
// took.
func inUse(runs []run, slots int64) float64 {
	first, last := runs[0].Start, runs[0].Start
	for _, r := range runs {
		first, last = min(first, r.Start), max(last, r.Start)
	}
	var taken int64
	for _, r := range runs {
		taken += min(r.End, last) - r.Start
	}
	return float64(taken) / float64(slots*(last-first))
}
