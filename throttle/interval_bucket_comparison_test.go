package throttle

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// intervalOracle is a bucket that is refilled in intervals, by its definition: what was
// taken in each period, and refills between them, each of which brings back up to count
// tokens.
type intervalOracle struct {
	count, period, capacity int64
	taken                   []int64 // in each period from the last refill on; of the first, all that is lacking
	refilled                int64   // when the last refill was; meaningless when full
	granted                 []intervalTake
	next                    *intervalOracle // other numbers, not met yet
}

// intervalTake is a reservation: its tokens, when its period began, what was lacking in
// that, and by which numbers.
type intervalTake struct{ cost, begins, lacks, period, capacity int64 }

func newIntervalOracle(l policy.Limit) oracle {
	count := min(l.Rate.Count, l.Capacity()) // what a refill brings beyond it runs over
	return &intervalOracle{count: count, period: l.Rate.Period.Microseconds(), capacity: l.Capacity(), taken: []int64{0}}
}

// at returns the oracle as it stands then; only an operation that writes keeps it.
func (o *intervalOracle) at(now int64) (seen *intervalOracle, converted bool) {
	s := *o
	s.taken = slices.Clone(o.taken)
	if n := o.next; n != nil {
		same := n.period == s.period && n.capacity == s.capacity
		if !same {
			s.refill(now)
		}
		if !same && !s.isFull() {
			converted = true
			was := s
			s.taken = []int64{ceilDiv(min(was.taken[0], was.capacity)*n.capacity, was.capacity)}
			s.refilled = now - max(0, now-was.refilled)*n.period/was.period
			for i, tokens := range was.taken[1:] {
				begins := was.refilled + int64(i+1)*was.period
				s.add(min(63, max(0, floorDiv(begins-s.refilled, n.period))), tokens)
			}
		}
		s.count, s.period, s.capacity, s.next = n.count, n.period, n.capacity, nil
	}
	s.refill(now)
	return &s, converted
}

func (o *intervalOracle) add(period, tokens int64) {
	for int64(len(o.taken)) <= period {
		o.taken = append(o.taken, 0)
	}
	o.taken[period] += tokens
}

// refill applies the refills until now, one after the other.
func (o *intervalOracle) refill(now int64) {
	for !o.isFull() && o.refilled+o.period <= now {
		left := max(0, o.taken[0]-o.count)
		o.refilled += o.period
		o.taken = o.taken[1:]
		o.add(0, left)
	}
}

func (o *intervalOracle) isFull() bool {
	return !slices.ContainsFunc(o.taken, func(tokens int64) bool { return tokens != 0 })
}

// lacks is what is lacking in a period, with so much more taken in another one.
func (o *intervalOracle) lacks(period, more, in int64) int64 {
	lacks := int64(0)
	for i := range period + 1 {
		lacks = max(0, lacks-o.count)
		if i < int64(len(o.taken)) {
			lacks += o.taken[i]
		}
		if i == in {
			lacks += more
		}
	}
	return lacks
}

// fits reports whether so much more may be taken in a period, and none find less than they
// would without it, unless there is enough.
func (o *intervalOracle) fits(period, more int64) bool {
	for i := period; i < max(period+1, int64(len(o.taken))); i++ {
		if o.lacks(i, more, period) > max(o.capacity, o.lacks(i, 0, 0)) {
			return false
		}
	}
	return true
}

func (o *intervalOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	s, converted := o.at(now)
	if converted {
		*o = *s
	}
	period := int64(0)
	for !s.fits(period, cost) {
		period++
	}
	at, slot := now, now
	if period > 0 {
		at = max(now, s.refilled+period*s.period)
		// The tokens of one refill are handed out over its period.
		slot = max(at, s.refilled+period*s.period+max(0, s.lacks(period, 0, 0)+s.count-s.capacity)*s.period/s.count)
	}
	if slot-now > wait || period >= 64 {
		return false, at
	}
	if s.isFull() {
		s.refilled = now
	}
	s.add(period, cost)
	s.granted = append(s.granted, intervalTake{cost, s.refilled + period*s.period, s.lacks(period, 0, 0), s.period, s.capacity})
	*o = *s
	return true, slot
}

// tells reports whether a reservation tells anything of the bucket: by other numbers, it
// is of another one.
func (o *intervalOracle) tells(t intervalTake) bool {
	return t.period == o.period && t.capacity == o.capacity
}

// own is the period of a reservation, the first one if it has ended, and how many refills
// were since.
func (o *intervalOracle) own(t intervalTake) (period, refills int64) {
	if !o.tells(t) {
		return 0, 0
	}
	n := floorDiv(t.begins-o.refilled, o.period)
	return min(63, max(0, n)), max(0, -n)
}

// back takes back what no refill has brought back since the reservation. A period ahead
// that is not the reservation's own holds nothing of it.
func (o *intervalOracle) back(tokens int64, t intervalTake) bool {
	if !o.tells(t) || o.isFull() {
		return false
	}
	period, refills := o.own(t)
	if period >= int64(len(o.taken)) || o.refilled+period*o.period < t.begins {
		return false
	}
	tokens = min(tokens, o.taken[period])
	if refills > 0 {
		tokens = min(tokens, t.lacks-refills*o.count)
	}
	if tokens <= 0 {
		return false
	}
	o.add(period, -tokens)
	return true
}

func (o *intervalOracle) cancel(now int64, nth int) {
	s, converted := o.at(now)
	if s.back(s.granted[nth].cost, s.granted[nth]) || converted {
		*o = *s
	}
}

func (o *intervalOracle) adjust(now int64, nth int, more int64) {
	s, converted := o.at(now)
	switch {
	case more > 0:
		period, _ := s.own(s.granted[nth])
		if s.isFull() {
			s.refilled, period = now, 0
		}
		s.add(period, more)
		*o = *s
	case more < 0 && s.back(-more, s.granted[nth]), converted:
		*o = *s
	}
	o.granted[nth].cost += more
}

func (o *intervalOracle) change(_ int64, l policy.Limit) {
	o.next = newIntervalOracle(l).(*intervalOracle)
}

func (o *intervalOracle) status(now int64) (remaining, resetAfter int64) {
	s, _ := o.at(now)
	for s.fits(0, remaining+1) {
		remaining++
	}
	if s.isFull() {
		return remaining, 0
	}
	last := int64(len(s.taken)) - 1
	for last > 0 && s.taken[last] == 0 {
		last--
	}
	return remaining, s.refilled + (last+ceilDiv(s.lacks(last, 0, 0), s.count))*s.period - now
}

func (o *intervalOracle) flush() {
	met, _ := o.at(comparisonEpoch)
	met.taken, met.granted = []int64{0}, nil
	*o = *met
}

func intervalNumbers(random *rand.Rand) policy.Limit {
	l := bucketNumbers(random)
	l.Refill = policy.RefillInterval
	l.Rate.Period = max(l.Rate.Period, time.Millisecond)
	return l
}
