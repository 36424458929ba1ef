package backlog

import (
	"math"
	"slices"
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// quotaUsed is of one tenant on the average, where each has a quota.
func quotaUsed(t *turn) (float64, bool) { return t.used(time.Time{}) }

func quotaUsedParked(t *turn) (float64, bool) {
	if t.seen.parked == nil {
		return 0, false
	}
	return t.used(t.seen.parked.at)
}

// used is which share of what the limit allows was used since an instant.
func (t *turn) used(since time.Time) (float64, bool) {
	if t.contender.kind == unlimited {
		return 0, false
	}
	sum, shares := 0.0, 0
	for _, calls := range t.quotas() {
		if t.scenario.limit.Algorithm == policy.Concurrency {
			if share, ok := t.scenario.limit.busy(calls, since); ok {
				sum += share
				shares++
			}
			continue
		}
		var times []time.Time
		for _, c := range calls {
			if c.arrived.After(since) {
				times = append(times, c.arrived)
			}
		}
		if share, ok := t.scenario.limit.used(times, t.windowsFrom(times), since.IsZero()); ok {
			sum += share
			shares++
		}
	}
	return sum / float64(max(1, shares)), shares > 0
}

// used is which share of the limit the times use, from the first to the last.
// Whole tells that they are all there are, so that a bucket was full before.
func (l limit) used(times []time.Time, windows time.Time, whole bool) (float64, bool) {
	if len(times) < 2 {
		return 0, false
	}
	span := times[len(times)-1].Sub(times[0])
	switch l.Algorithm {
	case policy.TokenBucket:
		burst := 1
		if whole {
			burst = l.Burst
		}
		return throttletest.Used(times, int64(burst), int64(l.Count), l.Period), true
	case policy.FixedWindow:
		// The last window is not over. Of the others, each could have been full.
		last := times[len(times)-1].Sub(windows) / l.Period
		over := last - times[0].Sub(windows)/l.Period
		if over < 1 {
			return 0, false
		}
		in := slices.IndexFunc(times, func(x time.Time) bool { return x.Sub(windows)/l.Period == last })
		return float64(in) / float64(int(over)*l.Count), true
	default: // a sliding one
		periods := math.Floor(float64(span+throttle.Lateness)/float64(l.Period)) + 1
		return float64(len(times)) / (periods * float64(l.Count)), true
	}
}

// busy is which share of the slots' time the API spent on calls while there was a
// backlog: from an instant, or the first call, until the last call came.
func (l limit) busy(calls []call, since time.Time) (float64, bool) {
	if len(calls) < 2 {
		return 0, false
	}
	from, to := latest(calls[0].arrived, since), calls[len(calls)-1].arrived
	var sum time.Duration
	for _, c := range calls {
		arrived, answered := latest(c.arrived, from), c.answered
		if answered.After(to) {
			answered = to
		}
		sum += max(0, answered.Sub(arrived))
	}
	all := to.Sub(from) * time.Duration(l.Count)
	return float64(sum) / float64(all), all > 0
}

// windowsFrom is where the contender's fixed windows begin: ours by the clock, the
// others' with the first call.
func (t *turn) windowsFrom(times []time.Time) time.Time {
	if t.contender.kind == rampmeter || len(times) == 0 {
		return time.Unix(0, 0)
	}
	return times[0]
}

// quotas parts the calls by whose quota they use.
func (t *turn) quotas() map[string][]call {
	parts := map[string][]call{}
	for _, c := range t.seen.calls {
		key := ""
		if t.scenario.limit.PerTenant {
			key = c.tenant
		}
		parts[key] = append(parts[key], c)
	}
	return parts
}

func starts(calls []call) []time.Time {
	times := make([]time.Time, len(calls))
	for i, c := range calls {
		times[i] = c.began
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

func busiest(t *turn) (float64, bool) {
	most := 0
	for _, calls := range t.quotas() {
		l := t.scenario.limit
		switch {
		case l.Algorithm == policy.Concurrency:
			most = max(most, mostAtOnce(calls))
		case l.Algorithm == policy.FixedWindow && t.contender.kind == rampmeter:
			most = max(most, throttletest.MaxPerWindow(starts(calls), l.Period, time.Unix(0, 0)))
		default:
			most = max(most, throttletest.MaxInAnyInterval(starts(calls), l.Period))
		}
	}
	return float64(most), true
}

// mostAtOnce is how many calls were at the API at most.
func mostAtOnce(calls []call) int {
	running := 0
	var ends []time.Time
	for _, c := range calls {
		ends = append(ends, c.answered)
	}
	slices.SortFunc(ends, time.Time.Compare)
	most := 0
	for _, c := range calls { // in order of arrival
		for len(ends) > 0 && !ends[0].After(c.arrived) {
			ends = ends[1:]
			running--
		}
		running++
		most = max(most, running)
	}
	return most
}

// over judges each contender by the definition of the algorithm it has, from the
// starts alone.
func over(t *turn) (float64, bool) {
	if t.contender.kind == unlimited {
		return 0, false
	}
	most := 0
	for _, calls := range t.quotas() {
		if t.scenario.limit.Algorithm == policy.Concurrency {
			most = max(most, mostAtOnce(calls)-t.scenario.limit.Count)
			continue
		}
		most = max(most, t.excess(starts(calls)))
	}
	return float64(most), true
}

// excess is by how many the starts exceed what the limit allows, with what a start
// may be late.
func (t *turn) excess(starts []time.Time) int {
	l := t.scenario.limit
	switch {
	case t.contender.kind == bullMQ:
		return throttletest.MaxPerOpenedWindow(starts, l.Period-throttle.Lateness) - l.Count
	case l.Algorithm == policy.TokenBucket, t.contender.kind == retryAfter && l.Algorithm == policy.SlidingLog:
		late := math.Ceil(float64(l.Count) * float64(throttle.Lateness) / float64(l.Period))
		return throttletest.MaxBurst(starts, int64(l.Count), l.Period) - max(1, l.Burst) - int(late)
	case l.Algorithm == policy.SlidingLog:
		return throttletest.MaxInAnyInterval(starts, l.Period-throttle.Lateness) - l.Count
	case t.contender.kind == rampmeter:
		return throttletest.MaxPerWindow(starts, l.Period, time.Unix(0, 0)) - l.Count
	}
	return throttletest.MaxPerOpenedWindow(starts, l.Period-throttle.Lateness) - l.Count
}

// slotLateness is of those starts whose slot is known.
func slotLateness(p float64) func(*turn) (float64, bool) {
	return func(t *turn) (float64, bool) {
		var late []time.Duration
		for _, c := range t.seen.calls {
			if !c.slot.IsZero() {
				late = append(late, max(0, c.began.Sub(c.slot)))
			}
		}
		slices.Sort(late)
		return harness.Percentile(late, p).Seconds() * 1000, len(late) > 0
	}
}
