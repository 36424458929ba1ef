package throttle

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// bucketOracle is a token bucket by its definition: each reservation moves the
// instant at which the bucket is full by what its tokens are worth. Instants are in
// parts, of which count make a microsecond, so that a token is exactly
// period parts; counted from comparisonEpoch, they stay far below 2^63.
type bucketOracle struct {
	count, period, capacity int64
	next                    *bucketOracle // other numbers, not met yet
	full                    int64         // parts
	free                    []bucketSlot
	granted                 []bucketSlot
	// What was given back out of the midst of others, and the latest full there was; both
	// in microseconds, and forgotten when no reservation can tell of them any more.
	returned, latest int64
}

// bucketSlot is a reservation: its start in microseconds, its tokens, when the bucket
// was full again after it, in parts, and by which numbers: how long it took to fill, and
// what it held; and what had been given back by then.
type bucketSlot struct{ at, cost, full, fill, capacity, returned int64 }

func newBucketOracle(l policy.Limit) oracle {
	return &bucketOracle{
		count: l.Rate.Count, period: l.Rate.Period.Microseconds(), capacity: l.Capacity(), full: alwaysFull,
	}
}

func (o *bucketOracle) parts(us int64) int64 { return (us - comparisonEpoch) * o.count }
func (o *bucketOracle) us(parts int64) int64 { return ceilDiv(parts, o.count) + comparisonEpoch }

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func floorDiv(a, b int64) int64 { return -ceilDiv(-a, b) }

func (o *bucketOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	o.meet(now)
	at := max(now, o.us(o.full-(o.capacity-cost)*o.period))
	for _, slot := range o.free {
		if slot.at >= now && slot.at < at && slot.cost >= cost {
			at = slot.at
		}
	}
	if at-now > wait {
		return false, at
	}
	o.settle(now)
	if from := o.freeAt(at, cost); from != nil {
		from.cost -= cost
		o.granted = append(o.granted, bucketSlot{at, cost, from.full, from.fill, from.capacity, from.returned})
		o.free = slices.DeleteFunc(o.free, func(s bucketSlot) bool { return s.cost == 0 })
		return true, at
	}
	o.full = max(o.full, o.parts(at)) + cost*o.period
	o.granted = append(o.granted, bucketSlot{at, cost, o.full, o.fill(), o.capacity, o.returned})
	o.settle(now)
	return true, at
}

func (o *bucketOracle) freeAt(at, cost int64) *bucketSlot {
	for i := range o.free {
		if o.free[i].at == at && o.free[i].cost >= cost {
			return &o.free[i]
		}
	}
	return nil
}

// settle drops the free slots that nobody took in time.
func (o *bucketOracle) settle(now int64) {
	o.free = slices.DeleteFunc(o.free, func(s bucketSlot) bool { return s.at < now })
	if o.returned, o.latest = o.given(now); o.returned > 0 {
		return
	}
	if o.us(o.full) <= now { // full: nothing is kept of it
		o.full, o.free = alwaysFull, nil
	}
}

// given is what was given back, and the latest full there was.
func (o *bucketOracle) given(now int64) (returned, latest int64) {
	if o.returned == 0 || o.latest+o.fill() <= now {
		return 0, o.us(o.full)
	}
	return o.returned, max(o.latest, o.us(o.full))
}

// isNewest reports whether nothing has come after a reservation.
func (o *bucketOracle) isNewest(s bucketSlot) bool {
	return s.full+s.returned*o.count == o.full+o.returned*o.count
}

// fill is how long an empty bucket takes to fill.
func (o *bucketOracle) fill() int64 { return ceilDiv(o.capacity*o.period, o.count) }

// tells reports whether a reservation tells anything of the bucket: by other numbers, it
// is of another one.
func (o *bucketOracle) tells(s bucketSlot) bool {
	return s.fill == o.fill() && s.capacity == o.capacity
}

// returnable is how many tokens of a reservation can come back: as many as neither
// the refill has brought back nor a later slot was built on.
func (o *bucketOracle) returnable(now int64, s bucketSlot) int64 {
	lastSlot := o.latest - floorDiv(o.capacity*o.period, o.count)
	us := floorDiv(s.full, o.count) + comparisonEpoch + s.returned - o.returned - max(now, lastSlot)
	if us <= 0 {
		return 0
	}
	return us * o.count / o.period
}

// give gives tokens back out of the midst of others.
func (o *bucketOracle) give(tokens int64) {
	o.full -= tokens * o.period
	o.returned += ceilDiv(tokens*o.period, o.count)
}

func (o *bucketOracle) cancel(now int64, nth int) {
	o.meet(now)
	was := *o
	o.returned, o.latest = o.given(now)
	s := o.granted[nth]
	free := slices.DeleteFunc(slices.Clone(o.free), func(s bucketSlot) bool { return s.at < now })
	switch {
	case !o.tells(s), s.cost == 0: // which has nothing to give back
		*o = was
		return
	case o.isNewest(s):
		o.full -= s.cost * o.period
		for len(free) > 0 && o.isNewest(free[len(free)-1]) {
			o.full -= free[len(free)-1].cost * o.period
			free = free[:len(free)-1]
		}
	case o.returnable(now, s) >= s.cost:
		o.give(s.cost)
	case s.at >= now && s.at < floorDiv(o.full, o.count)+comparisonEpoch && len(free) < 64:
		i := slices.IndexFunc(free, func(f bucketSlot) bool { return f.at > s.at })
		if i < 0 {
			i = len(free)
		}
		free = slices.Insert(free, i, s)
	default:
		*o = was
		return
	}
	o.free = free
	o.settle(now)
}

func (o *bucketOracle) adjust(now int64, nth int, more int64) {
	o.meet(now)
	s := &o.granted[nth]
	defer func() { s.cost += more }()
	was := *o
	o.returned, o.latest = o.given(now)
	moved := more
	if more < 0 && !o.tells(*s) {
		moved = 0
	} else if more < 0 {
		moved = -min(-more, o.returnable(now, *s))
	}
	switch {
	case moved == 0:
		*o = was
		return
	case moved > 0:
		o.full = max(o.full, o.parts(now)) + moved*o.period
	default:
		o.give(-moved)
	}
	o.settle(now)
}

// change keeps the numbers for the next operation that writes: a bucket is
// converted when it is met, not when somebody edits a file.
func (o *bucketOracle) change(_ int64, l policy.Limit) { o.next = newBucketOracle(l).(*bucketOracle) }

// meet converts the bucket to its next numbers: it keeps the used share.
func (o *bucketOracle) meet(now int64) {
	if o.next == nil {
		return
	}
	next := o.next
	next.granted = slices.Clone(o.granted)
	for i := range next.granted { // receipts keep their instants
		next.granted[i].full = floorDiv(o.granted[i].full, o.count) * next.count
	}
	was, is := o.fill(), next.fill()
	debt := o.us(o.full) - now
	switch {
	case debt > was: // slots ahead stay, new ones come after them, or after as many tokens
		tokens := ceilDiv((debt-was)*o.capacity, was)
		for _, slot := range o.free {
			if slot.at >= now {
				tokens = max(0, tokens-slot.cost)
			}
		}
		next.full = next.parts(now + min(debt-was, ceilDiv(tokens*is, next.capacity)) + is)
	case debt > 0:
		next.full = next.parts(now + ceilDiv(debt*is, was))
	default:
		next.full = next.parts(floorDiv(o.full, o.count) + comparisonEpoch)
	}
	if was == is && o.capacity == next.capacity {
		next.full, next.free = next.parts(floorDiv(o.full, o.count)+comparisonEpoch)+(o.full-floorDiv(o.full, o.count)*o.count), o.free
		next.returned, next.latest = o.returned, o.latest
	}
	*o = *next
	o.settle(now)
}

func (o *bucketOracle) status(now int64) (remaining, resetAfter int64) {
	met := *o
	met.meet(now)
	debt := met.full - met.parts(now)
	if debt <= 0 {
		return met.capacity, 0
	}
	return max(0, met.capacity-ceilDiv(debt, met.period)), met.us(met.full) - now
}

func (o *bucketOracle) flush() {
	o.meet(comparisonEpoch)
	o.full, o.free, o.granted, o.returned, o.latest = alwaysFull, nil, nil, 0, 0
}

// alwaysFull is an instant, in parts, before any that a story reaches.
const alwaysFull = -1 << 50

func bucketNumbers(random *rand.Rand) policy.Limit {
	return policy.Limit{
		Algorithm: policy.TokenBucket, Burst: 1 + random.Int64N(8),
		Rate: policy.Rate{Count: 1 + random.Int64N(9), Period: time.Duration(1+random.Int64N(2_000_000)) * time.Microsecond},
	}
}

// Stories in which script and oracle once differed.
func TestTokenBucketStoriesThatWentWrong(t *testing.T) {
	t.Parallel()
	client := throttletest.Redis(t).Client()
	for _, seed := range []uint64{
		462,  // a reservation of before gave back what it had by other numbers
		678,  // a denial forgot free slots that had passed, and then the clock was set back
		1479, // what was adjusted to nothing was cancelled, and then the clock was set back
		2811, // by other numbers, another TAT came to be at the instant of a receipt's
	} {
		tellStory(t, client, seed, bucketNumbers, newBucketOracle)
	}
}
