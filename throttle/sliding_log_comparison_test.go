package throttle

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// logOracle is a sliding log by its definition: a list of starts, of which every
// half-open interval of one period may have `count` tokens. It tries intervals
// instead of looking for full ones, and knows no ranks.
type logOracle struct {
	count, period int64
	starts        []logStart // by their instants, those of one instant as they came
	granted       []int64    // the instant of each granted reservation
	writing       bool       // whether the script call of now does
	longest       int64      // period by which somebody counted
	asked         int64      // about when somebody did beside a shorter one
}

// logStart is one start.
type logStart struct {
	at, cost int64
	nth      int
}

func newLogOracle(l policy.Limit) oracle {
	return &logOracle{count: l.Rate.Count, period: l.Rate.Period.Microseconds()}
}

// within sums what starts from `from` on, for so long.
func (o *logOracle) within(from, period int64) (sum int64) {
	for _, s := range o.starts {
		if s.at >= from && s.at < from+period {
			sum += s.cost
		}
	}
	return sum
}

// passes tells whether every interval around an instant has room. An interval can
// be moved later until it begins with a start, or with the instant, and loses none.
func (o *logOracle) passes(at, cost, period int64) bool {
	if o.within(at, period)+cost > o.count {
		return false
	}
	for _, s := range o.starts {
		if s.at > at-period && s.at <= at && o.within(s.at, period)+cost > o.count {
			return false
		}
	}
	return true
}

// earliest tries the instants at which an interval gets less: when it leaves a
// start behind.
func (o *logOracle) earliest(from, cost, period int64) int64 {
	if o.passes(from, cost, period) {
		return from
	}
	for _, s := range o.starts {
		if at := s.at + period; at > from && o.passes(at, cost, period) {
			return at
		}
	}
	panic("after the last start everything passes")
}

func (o *logOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	o.note(now)
	at := o.earliest(now, cost, o.period)
	// Who may wait keeps one percent more from others, 20 ms at most.
	slot := o.earliest(at, cost, o.period+min(o.period/100, 20_000))
	switch {
	case slot-now <= wait:
		at = slot
	case at > now:
		return false, at
	}
	start := logStart{at: at, cost: cost, nth: len(o.granted)}
	o.granted = append(o.granted, at)
	o.insert(start)
	o.writing = true
	return true, at
}

// ended forgets, after a script call, if that has written.
func (o *logOracle) ended(now int64) {
	if o.writing {
		o.forget(now, o.latest())
	}
	o.writing = false
}

func (o *logOracle) insert(start logStart) {
	place := len(o.starts)
	for place > 0 && o.starts[place-1].at > start.at {
		place--
	}
	o.starts = slices.Insert(o.starts, place, start)
}

// note keeps the longest period by which somebody counted, until nobody has for twice as long.
// What it changes is written, even for who is denied.
func (o *logOracle) note(now int64) {
	switch {
	case o.period > o.longest, o.asked > 0 && o.asked+2*o.longest < now:
		o.longest, o.asked, o.writing = o.period, 0, true
	case o.period < o.longest && o.asked == 0, o.period == o.longest && o.asked > 0 && 8*(now-o.asked) > o.period:
		o.asked, o.writing = now, true
	}
}

// forget drops what is the longest period old, and no less than a second or a period more, with
// each change. It shows when the clock is set back, or a period is longer again. When the latest
// start that was there before the change is as old as that, all is forgotten, the longest period too,
// unless somebody who counts by it asked beside a shorter one less than twice as long ago.
func (o *logOracle) forget(now, latest int64) {
	if o.longest == 0 { // of a start that came back after all was forgotten
		o.longest = o.period
	}
	old := now - o.longest - min(o.period, time.Second.Microseconds())
	o.starts = slices.DeleteFunc(o.starts, func(s logStart) bool { return s.at <= old })
	if latest <= old && (o.asked == 0 || o.asked+2*o.longest <= now) {
		o.longest, o.asked = 0, 0
	}
}

// latest is the instant of the latest start, 0 if there is none.
func (o *logOracle) latest() int64 {
	if len(o.starts) == 0 {
		return 0
	}
	return o.starts[len(o.starts)-1].at
}

func (o *logOracle) cancel(now int64, nth int) { o.recount(now, nth, -math.MaxInt32) }

// adjust counts what a start really cost, and brings back one that was adjusted to
// nothing while that matters.
func (o *logOracle) adjust(now int64, nth int, more int64) {
	switch at := o.granted[nth]; {
	case more == 0 || o.recount(now, nth, more):
	case more > 0 && at > now-o.period:
		o.insert(logStart{at: at, cost: more, nth: nth})
		o.forget(now, o.latest())
	}
}

func (o *logOracle) recount(now int64, nth int, more int64) bool {
	i := slices.IndexFunc(o.starts, func(s logStart) bool { return s.nth == nth })
	if i < 0 {
		return false
	}
	latest := o.latest()
	o.starts[i].cost += more
	if o.starts[i].cost <= 0 {
		o.starts = slices.Delete(o.starts, i, i+1)
	}
	o.forget(now, latest)
	return true
}

// change leaves the starts as they are: they are facts.
func (o *logOracle) change(_ int64, l policy.Limit) {
	o.count, o.period = l.Rate.Count, l.Rate.Period.Microseconds()
}

func (o *logOracle) status(now int64) (remaining, resetAfter int64) {
	remaining = o.count
	for _, s := range o.starts {
		resetAfter = max(resetAfter, s.at+o.period-now)
		if s.at > now-o.period && s.at < now+o.period {
			remaining -= s.cost
		}
	}
	return max(0, remaining), resetAfter
}

func (o *logOracle) flush() { o.starts, o.granted, o.longest, o.asked = nil, nil, 0, 0 }

// logNumbers are mostly small, where everything meets everything, and sometimes
// large enough that costs have many digits.
func logNumbers(random *rand.Rand) policy.Limit {
	count := 1 + random.Int64N(9)
	if random.IntN(8) == 0 {
		count = 1 + random.Int64N(400)
	}
	period := 1 + random.Int64N(2_000_000)
	if random.IntN(4) == 0 {
		period = 1 + random.Int64N(30)
	}
	return policy.Limit{
		Algorithm: policy.SlidingLog,
		Rate:      policy.Rate{Count: count, Period: time.Duration(period) * time.Microsecond},
	}
}

// A long line of slots ahead is searched for gaps, and what the search has found is
// kept; nothing may be left of it when a start is given back, numbers change or the
// clock goes back.
func compareLongLine(t *testing.T, client *redis.Client, operations int) {
	t.Helper()
	const storyOps = 100 // each compared by hand with every interval
	eachEpisode(t, client, operations/4, storyOps, func(seed uint64) { tellOfALine(t, client, seed, storyOps) })
}

func tellOfALine(t testing.TB, client *redis.Client, seed uint64, ops int) {
	t.Helper()
	numbers := func(random *rand.Rand) policy.Limit {
		return policy.Limit{
			Algorithm: policy.SlidingLog,
			Rate:      policy.Rate{Count: 1 + random.Int64N(3), Period: time.Duration(10+random.Int64N(20)) * time.Microsecond},
		}
	}
	d := &comparison{client: client, seed: seed}
	d.begin(t, 7, numbers, newLogOracle)
	random := d.random
	for range ops {
		switch n := random.IntN(100); {
		case n < 70:
			d.reserveTogether(1+random.IntN(4), 60)
		case n < 80:
			d.cancel()
		case n < 84:
			d.adjust()
		case n < 95:
			d.tick()
		case n < 97:
			d.now += (random.Int64N(30) - 15) * d.limit.Rate.Period.Microseconds()
			d.tell("is the time")
			d.setClock()
		case n < 99:
			d.change(numbers(random))
		}
		if random.IntN(3) == 0 {
			d.compareStatus()
		}
	}
}

// reserveTogether asks for several starts in one script call, whose slots may be
// many periods away. The oracle hears of them one by one.
func (d *comparison) reserveTogether(n int, periods int64) {
	d.t.Helper()
	asks := make([]Request, n)
	for i := range asks {
		cost, wait := int64(1), int64(0)
		if d.random.IntN(4) == 0 {
			cost = 1 + d.random.Int64N(d.limit.Capacity())
		}
		if d.random.IntN(4) > 0 {
			wait = periods * d.limit.Rate.Period.Microseconds()
		}
		asks[i] = d.request(cost, wait)
	}
	answers, err := ReserveTogether(d.limiter, asks...)
	require.NoError(d.t, err)
	for _, r := range answers {
		granted, at := d.oracle.reserve(d.now, r.claim.request.MaxWait.Microseconds(), r.claim.costs[0], "task")
		d.compareAnswer(r, granted, at)
	}
	d.callEnded()
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
