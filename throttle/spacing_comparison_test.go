package throttle

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// spacingOracle is a spacing by its definition: a line of free time, of which each start
// takes as many spacings as it costs. Instants are in parts, of which count make a
// microsecond, so that a spacing is exactly period parts, and counted from
// comparisonEpoch.
type spacingOracle struct {
	count, period int64
	free          []freeTime // between slots
	end           int64      // after all slots
	latest        int        // the reservation of the latest slot; -1 if it was given back
	granted       []int64    // exact slots
	costs         []int64
	next          *spacingOracle // other numbers, not met yet
}

type freeTime struct{ from, till int64 }

func newSpacingOracle(l policy.Limit) oracle {
	return &spacingOracle{count: l.Rate.Count, period: l.Rate.Period.Microseconds(), end: alwaysFull, latest: -1}
}

func (o *spacingOracle) parts(us int64) int64 { return (us - comparisonEpoch) * o.count }
func (o *spacingOracle) us(parts int64) int64 { return ceilDiv(parts, o.count) + comparisonEpoch }

// from is an exact instant, or now if it has passed by the clock.
func (o *spacingOracle) from(exact, now int64) int64 {
	if o.us(exact) < now {
		return o.parts(now)
	}
	return exact
}

// at returns the oracle as it stands then; only an operation that writes keeps it.
func (o *spacingOracle) at(now int64) *spacingOracle {
	s := *o
	if n := o.next; n != nil {
		s = *n
		s.granted, s.costs = o.granted, o.costs
		if ends := o.us(o.end); ends > now {
			since := ends - o.period/o.count
			if o.latest >= 0 {
				since = o.us(o.granted[o.latest])
			}
			since = max(since, now)
			s.end = s.parts(since + ceilDiv((ends-since)*n.period*o.count, n.count*o.period))
		}
	}
	s.free = slices.DeleteFunc(slices.Clone(s.free), func(f freeTime) bool {
		return floorDiv(f.till, s.count)+comparisonEpoch-now < s.period/s.count
	})
	return &s
}

// wrote keeps what an operation made of the oracle, if anything of it matters.
func (o *spacingOracle) wrote(s *spacingOracle, now int64) {
	if s.us(s.end) <= now {
		s.free, s.end, s.latest = nil, alwaysFull, -1
	}
	*o = *s
}

func (o *spacingOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	s := o.at(now)
	if o.next != nil {
		*o = *s
	}
	start, place := s.from(s.end, now), -1
	for i, f := range s.free {
		if exact := s.from(f.from, now); exact+cost*s.period <= f.till {
			start, place = exact, i
			break
		}
	}
	if s.us(start)-now > wait {
		return false, s.us(start)
	}
	if ends := start + cost*s.period; place < 0 {
		s.end, s.latest = ends, len(s.granted)
	} else if s.free[place].from = ends; ends+s.period > s.free[place].till {
		s.free = slices.Delete(s.free, place, place+1)
	}
	s.granted, s.costs = append(s.granted, start), append(s.costs, cost)
	o.wrote(s, now)
	return true, s.us(start)
}

func (o *spacingOracle) cancel(now int64, nth int) {
	s := o.at(now)
	exact := s.granted[nth]
	if s.costs[nth] == 0 {
		return
	}
	if nth == s.latest {
		s.end, s.latest = s.end-s.costs[nth]*s.period, -1
		for len(s.free) > 0 && s.free[len(s.free)-1].till >= s.end {
			s.end, s.free = s.free[len(s.free)-1].from, s.free[:len(s.free)-1]
		}
		o.wrote(s, now)
		return
	}
	if s.us(exact) < now || exact+s.period > s.end || len(s.free) >= 32 {
		return
	}
	s.free = append(s.free, freeTime{exact, exact + s.period})
	slices.SortFunc(s.free, func(a, b freeTime) int { return int(a.from - b.from) })
	o.wrote(s, now)
}

func (o *spacingOracle) adjust(now int64, nth int, more int64) {
	o.costs[nth] += more
	s := o.at(now)
	switch {
	case more > 0:
		s.end = s.from(s.end, now) + more*s.period
	case more < 0 && nth == s.latest:
		s.end = max(s.end+more*s.period, s.granted[nth]+s.period)
	default:
		return
	}
	o.wrote(s, now)
}

func (o *spacingOracle) change(_ int64, l policy.Limit) {
	o.next = newSpacingOracle(l).(*spacingOracle)
}

func (o *spacingOracle) status(now int64) (remaining, resetAfter int64) {
	s := o.at(now)
	if ok, _ := s.reserve(now, 0, 1, ""); ok {
		remaining = 1
	}
	return remaining, max(0, o.at(now).us(o.at(now).end)-now)
}

func (o *spacingOracle) flush() {
	if o.next != nil {
		*o = *o.next
	}
	o.free, o.end, o.latest, o.granted, o.costs = nil, alwaysFull, -1, nil, nil
}

func spacingNumbers(random *rand.Rand) policy.Limit {
	return policy.Limit{
		Algorithm: policy.Spacing,
		Rate:      policy.Rate{Count: 1 + random.Int64N(9), Period: time.Duration(9+random.Int64N(2_000_000)) * time.Microsecond},
	}
}

func FuzzSpacingAgainstOracle(f *testing.F) {
	client := throttletest.Redis(f).Client()
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { tellStory(t, client, seed, spacingNumbers, newSpacingOracle) })
}
