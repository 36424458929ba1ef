package throttle

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// slidingOracle is a sliding window by its definition: what each bucket counts,
// of which no span+1 in a row may count more than count.
type slidingOracle struct {
	count, period, precision int64
	buckets                  []slidingBucket // those that count anything, in order
	granted                  []slidingTake
	since                    int64          // when numbers last changed, as far as anything is counted since
	next                     *slidingOracle // other numbers, not met yet
}

// slidingBucket is what one bucket counts; buckets are numbered from the epoch.
type slidingBucket struct{ n, cost int64 }

// slidingTake is a reservation: its tokens, and the bucket they were taken in.
type slidingTake struct{ cost, start, end int64 }

const slidingAhead = 1000

func newSlidingOracle(l policy.Limit) oracle {
	return &slidingOracle{
		count: l.Rate.Count, period: l.Rate.Period.Microseconds(), precision: l.BucketLength().Microseconds(),
	}
}

func (o *slidingOracle) span() int64            { return o.period / o.precision }
func (o *slidingOracle) bucket(at int64) int64  { return at / o.precision }
func (o *slidingOracle) oldest(now int64) int64 { return o.bucket(now) - o.span() }
func (o *slidingOracle) in(bucket int64) int64  { return o.between(bucket, bucket) }
func (o *slidingOracle) total() int64           { return o.between(0, 1<<62) }
func (o *slidingOracle) newest() slidingBucket  { return o.buckets[len(o.buckets)-1] }
func (o *slidingOracle) endsWith(n int64) int64 { return o.between(n-o.span(), n) }
func (o *slidingOracle) hasNumbersOf(p *slidingOracle) bool {
	return o.count == p.count && o.period == p.period && o.precision == p.precision
}

// between is what the buckets from first to last count.
func (o *slidingOracle) between(first, last int64) int64 {
	sum := int64(0)
	for _, b := range o.buckets {
		if b.n >= first && b.n <= last {
			sum += b.cost
		}
	}
	return sum
}

func (o *slidingOracle) add(bucket, cost int64) {
	i, found := slices.BinarySearchFunc(o.buckets, bucket, func(b slidingBucket, n int64) int { return int(b.n - n) })
	if !found {
		o.buckets = slices.Insert(o.buckets, i, slidingBucket{n: bucket})
	}
	o.buckets[i].cost += cost
	if o.buckets[i].cost == 0 {
		o.buckets = slices.Delete(o.buckets, i, i+1)
	}
}

// passes is the definition.
func (o *slidingOracle) passes(bucket, cost int64) bool {
	for last := bucket; last <= bucket+o.span(); last++ {
		if o.endsWith(last)+cost > o.count {
			return false
		}
	}
	return true
}

// at returns the oracle as it stands at that time: what is too old is forgotten,
// other numbers are met. Only an operation that writes keeps it.
func (o *slidingOracle) at(now int64) (seen *slidingOracle, converted bool) {
	s := *o
	oldest := o.oldest(now)
	s.buckets = slices.DeleteFunc(slices.Clone(o.buckets), func(b slidingBucket) bool { return b.n < oldest })
	if len(s.buckets) == 0 {
		s.since = 0
	}
	if o.next == nil || s.hasNumbersOf(o.next) {
		s.next = nil
		return &s, false
	}
	next := *o.next
	next.granted = s.granted
	if len(s.buckets) > 0 {
		next.since = now
	}
	// The latest first, so that what is left of the past keeps its share, rounded
	// up, whenever the older part of it is forgotten.
	past, share := int64(0), int64(0)
	for _, b := range slices.Backward(s.buckets) {
		instant, cost := (b.n+1)*s.precision-1, b.cost
		if age := s.bucket(now) - b.n; age >= 0 {
			past = min(s.count, past+b.cost)
			cost = ceilDiv(past*next.count, s.count) - share
			share += cost
			instant = now - max(0, age-1)*next.period/s.span()
		}
		if s.period == next.period && s.precision == next.precision {
			next.add(b.n, cost)
		} else {
			next.add(next.bucket(instant), cost)
		}
	}
	return &next, len(s.buckets) > 0
}

func (o *slidingOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	s, converted := o.at(now)
	if converted {
		*o = *s
	}
	bucket := s.bucket(now)
	for !s.passes(bucket, cost) {
		bucket++
	}
	start := bucket * s.precision
	at := max(now, start)
	slot := at
	if at > now && at-now <= wait {
		usable := s.precision - s.precision/4
		slot = max(at, start+s.in(bucket)*usable/(s.count-s.endsWith(bucket)+s.in(bucket)))
	}
	if slot > now && (slot-now > wait || s.bucket(slot) >= s.bucket(now)+slidingAhead) {
		return false, at
	}
	s.add(bucket, cost)
	s.granted = append(s.granted, slidingTake{cost, start, start + s.precision})
	*o = *s
	return true, slot
}

func (o *slidingOracle) cancel(now int64, nth int) {
	s, converted := o.at(now)
	if converted {
		*o = *s
	}
	take := s.granted[nth]
	bucket := s.bucket(take.end - 1)
	if take.cost > 0 && take.start > s.since && s.in(bucket) >= take.cost {
		s.add(bucket, -take.cost)
		o.keep(s)
	}
}

func (o *slidingOracle) adjust(now int64, nth int, more int64) {
	s, converted := o.at(now)
	if converted {
		*o = *s
	}
	take := s.granted[nth]
	o.granted[nth].cost += more
	bucket := s.bucket(take.end - 1)
	switch {
	case take.start <= s.since && more < 0:
		return
	case take.start <= s.since:
		bucket = s.bucket(s.since)
	}
	if more != 0 && s.in(bucket)+more >= 0 && bucket >= s.oldest(now) {
		s.add(bucket, more)
		o.keep(s)
	}
}

// keep is what writing does: of nothing counted, nothing is kept.
func (o *slidingOracle) keep(s *slidingOracle) {
	if len(s.buckets) == 0 {
		s.since = 0
	}
	*o = *s
}

func (o *slidingOracle) change(_ int64, l policy.Limit) {
	o.next = newSlidingOracle(l).(*slidingOracle)
}

func (o *slidingOracle) status(now int64) (remaining, resetAfter int64) {
	s, _ := o.at(now)
	if len(s.buckets) == 0 {
		return s.count, 0
	}
	return max(0, s.count-s.total()), (s.newest().n+s.span()+1)*s.precision - now
}

func (o *slidingOracle) flush() {
	if o.next != nil {
		*o = *o.next
	}
	o.buckets, o.granted, o.since = nil, nil, 0
}

// slidingNumbers favours numbers that differ in one thing only, by drawing each
// from few.
func slidingNumbers(random *rand.Rand) policy.Limit {
	precision := time.Duration([]int64{1, 7, 1000, 50_000, 1 + random.Int64N(100_000)}[random.IntN(5)]) * time.Microsecond
	span := []int64{1, 2, 5, 20, 1 + random.Int64N(12)}[random.IntN(5)]
	count := []int64{1, 3, 8, 1 + random.Int64N(20)}[random.IntN(4)]
	return policy.Limit{
		Algorithm: policy.SlidingWindow, Precision: precision,
		Rate: policy.Rate{Count: count, Period: time.Duration(span) * precision},
	}
}

func FuzzSlidingWindow(f *testing.F) {
	client := throttletest.Redis(f).Client()
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { tellStory(t, client, seed, slidingNumbers, newSlidingOracle) })
}
