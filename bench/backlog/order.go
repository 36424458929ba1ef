package backlog

import (
	"slices"
	"time"
)

// inversions is which share of neighbouring starts of a tenant is in the wrong
// order: the later start is of the task that was enqueued before. It is the handlers'
// word that counts: on its way to the API one call may overtake another.
func inversions(t *turn) (float64, bool) {
	wrong, pairs := 0, 0
	last := map[string]int{}
	calls := slices.Clone(t.seen.calls)
	slices.SortStableFunc(calls, func(x, y call) int { return x.began.Compare(y.began) })
	for _, c := range calls {
		if before, ok := last[c.tenant]; ok {
			pairs++
			if c.task < before {
				wrong++
			}
		}
		last[c.tenant] = c.task
	}
	return float64(wrong) / float64(max(1, pairs)), pairs > 0
}

// smallDone is when the last task of a small tenant was called.
func smallDone(t *turn) (float64, bool) {
	if !t.scenario.hasSmall() {
		return 0, false
	}
	big := t.scenario.lanes[0]
	small := map[int]bool{}
	var last time.Time
	for _, c := range t.seen.calls {
		if c.tenant != big.Name {
			small[c.task] = true
			last = c.arrived
		}
	}
	return last.Sub(t.seen.began).Seconds(), len(small) == t.seen.tasks-big.Tasks
}

func allDone(t *turn) (float64, bool) {
	if t.seen.cut || len(t.seen.calls) == 0 {
		return 0, false
	}
	return t.seen.calls[len(t.seen.calls)-1].arrived.Sub(t.seen.began).Seconds(), true
}

func parkedAfter(t *turn) (float64, bool) {
	if t.seen.parked == nil {
		return 0, false
	}
	return t.seen.parked.at.Sub(t.seen.began).Seconds(), true
}
