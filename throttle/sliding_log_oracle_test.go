package throttle

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// logOracle is a sliding log by its definition: a list of starts, of which every
// half-open interval of one period may have `count` tokens. It tries intervals
// instead of looking for full ones, and knows no ranks.
type logOracle struct {
	count, period int64
	starts        []logStart // by their instants, those of one instant as they came
	granted       []int64    // the instant of each granted reservation
}

// logStart is one start. One that cost more than the whole limit weighs no more
// than that (but 2 at least): there is nothing more to close.
type logStart struct {
	at, cost, weight int64
	nth              int
}

func newLogOracle(l Limit) oracle {
	return &logOracle{count: l.Rate.Count, period: l.Rate.Period.Microseconds()}
}

// within sums what starts from `from` on, for one period.
func (o *logOracle) within(from int64) (sum int64) {
	for _, s := range o.starts {
		if s.at >= from && s.at < from+o.period {
			sum += s.weight
		}
	}
	return sum
}

// passes tells whether every interval around an instant has room. An interval can
// be moved later until it begins with a start, or with the instant, and loses none.
func (o *logOracle) passes(at, cost int64) bool {
	if o.within(at)+cost > o.count {
		return false
	}
	for _, s := range o.starts {
		if s.at > at-o.period && s.at <= at && o.within(s.at)+cost > o.count {
			return false
		}
	}
	return true
}

// earliest tries the instants at which an interval gets less: when it leaves a
// start behind.
func (o *logOracle) earliest(from, cost int64) int64 {
	if o.passes(from, cost) {
		return from
	}
	for _, s := range o.starts {
		if at := s.at + o.period; at > from && o.passes(at, cost) {
			return at
		}
	}
	panic("after the last start everything passes")
}

func (o *logOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	at := o.earliest(now, cost)
	if at-now > wait {
		return false, at
	}
	start := logStart{at: at, cost: cost, weight: cost, nth: len(o.granted)}
	o.granted = append(o.granted, at)
	o.insert(start)
	o.forget(now, at)
	return true, at
}

func (o *logOracle) insert(start logStart) {
	place := len(o.starts)
	for place > 0 && o.starts[place-1].at > start.at {
		place--
	}
	o.starts = slices.Insert(o.starts, place, start)
}

// forget drops what is two periods old, or a second older than one: a little with
// each change, whole instants until enough tokens are gone, and everything if the
// last start is that old. It shows only when the clock is set further back.
func (o *logOracle) forget(now, last int64) {
	const enough = 128
	old := now - o.period - min(o.period, time.Second.Microseconds())
	until, tokens := old, int64(0)
	for _, s := range o.starts {
		last = max(last, s.at)
		tokens += s.weight
		if tokens >= enough && tokens-s.weight < enough {
			until = min(until, s.at)
		}
	}
	if last <= old {
		until = last
	}
	o.starts = slices.DeleteFunc(o.starts, func(s logStart) bool { return s.at <= until })
}

func (o *logOracle) cancel(now int64, nth int) { o.recount(now, nth, -math.MaxInt32) }

// adjust counts what a start really cost, and brings back one that was adjusted to
// nothing while that matters.
func (o *logOracle) adjust(now int64, nth int, more int64) {
	switch at := o.granted[nth]; {
	case more == 0 || o.recount(now, nth, more):
	case more > 0 && at > now-o.period:
		o.insert(logStart{at: at, cost: more, weight: o.weight(more), nth: nth})
		o.forget(now, at)
	}
}

func (o *logOracle) weight(cost int64) int64 { return min(cost, max(2, o.count)) }

func (o *logOracle) recount(now int64, nth int, more int64) bool {
	i := slices.IndexFunc(o.starts, func(s logStart) bool { return s.nth == nth })
	if i < 0 {
		return false
	}
	last := o.starts[len(o.starts)-1].at
	s := &o.starts[i]
	s.cost += more
	s.weight = o.weight(s.cost)
	if s.cost <= 0 {
		o.starts = slices.Delete(o.starts, i, i+1)
	}
	o.forget(now, last)
	return true
}

// change leaves the starts as they are: they are facts.
func (o *logOracle) change(_ int64, l Limit) {
	o.count, o.period = l.Rate.Count, l.Rate.Period.Microseconds()
}

func (o *logOracle) status(now int64) (remaining, resetAfter int64) {
	remaining = o.count
	for _, s := range o.starts {
		resetAfter = max(resetAfter, s.at+o.period-now)
		if s.at > now-o.period && s.at < now+o.period {
			remaining -= s.weight
		}
	}
	return max(0, remaining), resetAfter
}

func (o *logOracle) flush() { o.starts, o.granted = nil, nil }

// logNumbers are mostly small, where everything meets everything, and sometimes
// large enough that forgetting takes more than one change.
func logNumbers(random *rand.Rand) Limit {
	count := 1 + random.Int64N(9)
	if random.IntN(8) == 0 {
		count = 1 + random.Int64N(400)
	}
	period := 1 + random.Int64N(2_000_000)
	if random.IntN(4) == 0 {
		period = 1 + random.Int64N(30)
	}
	return Limit{
		Algorithm: SlidingLog,
		Rate:      Rate{Count: count, Period: time.Duration(period) * time.Microsecond},
	}
}

func TestSlidingLogAgainstOracle(t *testing.T) {
	t.Parallel()
	compareWithOracle(t, logNumbers, newLogOracle)
}

func FuzzSlidingLogAgainstOracle(f *testing.F) {
	client := throttletest.Redis(f).Client()
	for seed := range uint64(3) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		tellStory(t, client, seed, logNumbers, newLogOracle)
	})
}
