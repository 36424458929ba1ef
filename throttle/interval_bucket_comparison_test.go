package throttle

import (
	"math/rand/v2"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// intervalOracle is a bucket that is refilled in intervals, by its definition: a
// list of refills, each of which brings back up to count tokens.
type intervalOracle struct {
	count, period, capacity int64
	taken                   int64 // above the capacity: for slots ahead
	free                    int64 // of it, given back for starts before the next refill
	refilled                int64 // when the last refill was; meaningless when full
	last                    int64 // the latest slot
	granted                 []intervalTake
	next                    *intervalOracle // other numbers, not met yet
}

// intervalTake is a reservation: its tokens, its slot, how the bucket stood after it, and
// by which numbers.
type intervalTake struct{ cost, slot, refilled, taken, period, capacity int64 }

func newIntervalOracle(l policy.Limit) oracle {
	count := min(l.Rate.Count, l.Capacity()) // what a refill brings beyond it runs over
	return &intervalOracle{count: count, period: l.Rate.Period.Microseconds(), capacity: l.Capacity()}
}

func (o *intervalOracle) at(now int64) (seen intervalOracle, converted bool) {
	s := *o
	if n := o.next; n != nil {
		same := n.period == s.period && n.capacity == s.capacity
		if !same {
			s.refill(now)
		}
		if !same && s.taken > 0 {
			converted, s.free = true, 0
			if s.last > now { // slots ahead leave an empty bucket behind
				s.refilled, s.taken = s.last, n.capacity
			} else {
				s.taken = ceilDiv(min(s.taken, s.capacity)*n.capacity, s.capacity)
				s.refilled = now - max(0, now-s.refilled)*n.period/s.period
			}
		}
		s.count, s.period, s.capacity, s.next = n.count, n.period, n.capacity, nil
	}
	s.refill(now)
	return s, converted
}

// refill applies the refills until now.
func (o *intervalOracle) refill(now int64) {
	for o.taken > 0 && o.refilled+o.period <= now {
		o.refilled += o.period
		o.free = 0
		o.taken = max(0, o.taken-o.count)
	}
	if o.taken == 0 {
		o.last, o.free = 0, 0
	}
}

// full is when the bucket is full, by the refills to come.
func (o *intervalOracle) full() int64 { return o.refilled + ceilDiv(o.taken, o.count)*o.period }

func (o *intervalOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	s, converted := o.at(now)
	if converted {
		*o = s
	}
	if s.freeAt(now, cost) {
		s.free -= cost
		s.granted = append(s.granted, intervalTake{cost, now, s.refilled, 0, s.period, s.capacity})
		*o = s
		return true, now
	}
	missing, refills := s.taken+cost-s.capacity, int64(0)
	if missing > 0 {
		refills = ceilDiv(missing, s.count)
	}
	if refills == 0 {
		s.take(now, cost)
		*o = s
		return true, now
	}
	at := s.refilled + refills*s.period
	if at-now > wait {
		return false, at
	}
	// The tokens of one refill are handed out over its period.
	before := max(0, s.count-(refills*s.count-missing)-cost)
	slot := at + before*s.period/s.count
	if slot-now > wait {
		return false, at
	}
	s.take(slot, cost)
	*o = s
	return true, slot
}

// freeAt reports whether free tokens suffice for a start between two refills.
func (o *intervalOracle) freeAt(at, cost int64) bool {
	return o.free > 0 && cost <= o.free && o.isBeforeRefill(at)
}

// isBeforeRefill reports whether an instant lies between the last refill and the next.
func (o *intervalOracle) isBeforeRefill(at int64) bool {
	return o.taken > 0 && o.refilled <= at && at < o.refilled+o.period
}

func (o *intervalOracle) take(at, cost int64) {
	if o.taken == 0 {
		o.refilled = at
	}
	o.taken += cost
	o.last = max(o.last, at)
	o.granted = append(o.granted, intervalTake{cost, at, o.refilled, o.taken, o.period, o.capacity})
}

// tells reports whether a reservation tells anything of the bucket: by other numbers, it
// is of another one.
func (o *intervalOracle) tells(t intervalTake) bool {
	return t.period == o.period && t.capacity == o.capacity
}

// back takes back what no refill has brought back since the reservation. While a
// slot lies ahead, the newest reservation alone can be taken back.
func (o *intervalOracle) back(now, tokens int64, t intervalTake) bool {
	if !o.tells(t) {
		return false
	}
	left := t.taken - max(0, floorDiv(now-t.refilled, o.period))*o.count
	if o.taken == 0 || o.last > now && left != o.taken {
		return false
	}
	tokens = min(tokens, left, o.taken)
	o.taken -= max(0, tokens)
	return tokens > 0
}

func (o *intervalOracle) cancel(now int64, nth int) {
	s, converted := o.at(now)
	if converted {
		*o = s
	}
	if t := s.granted[nth]; s.back(now, t.cost, t) {
		*o = s
	} else if s.tells(t) && s.isBeforeRefill(t.slot) {
		// A bucket does not tell starts apart that lie between the same refills.
		s.free = min(s.free+t.cost, s.taken)
		*o = s
	}
}

func (o *intervalOracle) adjust(now int64, nth int, more int64) {
	s, converted := o.at(now)
	switch {
	case more > 0:
		if s.taken == 0 {
			s.refilled = now
		}
		s.taken += more
		*o = s
	case more < 0 && s.back(now, -more, s.granted[nth]), converted:
		*o = s
	}
	o.granted[nth].cost += more
}

func (o *intervalOracle) change(_ int64, l policy.Limit) {
	o.next = newIntervalOracle(l).(*intervalOracle)
}

func (o *intervalOracle) status(now int64) (remaining, resetAfter int64) {
	s, _ := o.at(now)
	if s.taken == 0 {
		return s.capacity, 0
	}
	return max(0, s.capacity-s.taken) + s.free, s.full() - now
}

func (o *intervalOracle) flush() {
	*o, _ = o.at(comparisonEpoch)
	o.taken, o.free, o.last, o.granted = 0, 0, 0, nil
}

func intervalNumbers(random *rand.Rand) policy.Limit {
	l := bucketNumbers(random)
	l.Refill = policy.RefillInterval
	l.Rate.Period = max(l.Rate.Period, time.Millisecond)
	return l
}
