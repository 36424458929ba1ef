package throttle

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// windowOracle is a fixed window by its definition: what is taken in each window,
// by the window's number counted from the first one that is open.
type windowOracle struct {
	count, period int64
	first         bool  // windows begin with a first request
	open          bool  // there is a window
	start         int64 // of window 0
	windows       int64 // how many are open, 0 to windows-1
	taken         map[int64]int64
	granted       []windowTake
	next          *windowOracle // other numbers, not met yet
}

// windowTake is a reservation: its tokens, and where its window begins.
type windowTake struct{ cost, start int64 }

const windowsAhead = 64

func newWindowOracle(l policy.Limit) oracle {
	return &windowOracle{
		count: l.Rate.Count, period: l.Rate.Period.Microseconds(), first: l.Anchor == policy.AnchorFirst,
		taken: map[int64]int64{},
	}
}

// at returns the oracle as it stands at that time: windows that ended are gone,
// other numbers are met. Only an operation that writes keeps it.
func (o *windowOracle) at(now int64) (seen *windowOracle, converted bool) {
	s := *o
	s.taken = maps.Clone(o.taken)
	s.forget(now)
	if o.next == nil {
		return &s, false
	}
	next := *o.next
	next.granted, next.taken = s.granted, map[int64]int64{}
	if next.count == s.count && next.period == s.period {
		s.first, s.next = next.first, nil
		return &s, false
	}
	switch next.open = s.open; { // the open window keeps its used share, and the one of its time
	case next.period == s.period:
		next.start = s.start
	case next.first:
		next.start = now - max(0, now-s.start)*next.period/s.period
	default:
		next.start = now - now%next.period
	}
	for i := int64(0); s.open && i < min(s.windows, windowsAhead); i++ {
		tokens := s.taken[i]
		if i == 0 {
			tokens = ceilDiv(tokens*next.count, s.count)
		}
		_, n := next.window(max(now, s.start+i*s.period))
		if n < windowsAhead {
			next.windows = max(next.windows, n+1)
			next.taken[n] += tokens
		}
	}
	return &next, s.open
}

func (o *windowOracle) forget(now int64) {
	if !o.open {
		return
	}
	ended := max(0, floorDiv(now-o.start, o.period))
	if ended >= o.windows {
		o.open, o.windows, o.taken = false, 0, map[int64]int64{}
		return
	}
	later := map[int64]int64{}
	for n, tokens := range o.taken {
		if n >= ended {
			later[n-ended] = tokens
		}
	}
	o.start, o.windows, o.taken = o.start+ended*o.period, o.windows-ended, later
}

// window returns where the window of an instant begins, and its number.
func (o *windowOracle) window(at int64) (begin, n int64) {
	switch {
	case o.open:
		n = max(0, floorDiv(at-o.start, o.period))
		return o.start + n*o.period, n
	case o.first:
		return at, 0
	}
	return at - at%o.period, 0
}

func (o *windowOracle) reserve(now, wait, cost int64, _ string) (bool, int64) {
	s, converted := o.at(now)
	if converted {
		*o = *s
	}
	at := now
	begin, n := s.window(at)
	for s.taken[n]+cost > s.count {
		n++
		begin += s.period
		at = begin
	}
	slot := at
	if at > now && at-now <= wait && begin > now {
		slot = max(at, begin+s.taken[n]*s.period/s.count)
	}
	open, _ := s.window(now)
	if slot > now && (slot-now > wait || slot >= open+windowsAhead*s.period) {
		return false, at
	}
	begin, n = s.window(slot)
	if !s.open {
		s.open, s.start = true, begin
	}
	s.windows = max(s.windows, n+1)
	s.taken[n] += cost
	s.granted = append(s.granted, windowTake{cost, begin})
	*o = *s
	return true, slot
}

func (o *windowOracle) cancel(now int64, nth int) { o.move(now, nth, -o.granted[nth].cost) }

func (o *windowOracle) adjust(now int64, nth int, more int64) {
	o.move(now, nth, more)
	o.granted[nth].cost += more
}

// move changes what a reservation counts in its window, if that is open still and counts so
// much.
func (o *windowOracle) move(now int64, nth int, more int64) {
	s, converted := o.at(now)
	if converted {
		*o = *s
	}
	take := s.granted[nth]
	if more == 0 || !s.open || take.start < s.start {
		return
	}
	n := floorDiv(take.start-s.start, s.period)
	if n >= s.windows || s.taken[n] < -more {
		return
	}
	s.taken[n] += more
	*o = *s
}

func (o *windowOracle) change(_ int64, l policy.Limit) { o.next = newWindowOracle(l).(*windowOracle) }

func (o *windowOracle) status(now int64) (remaining, resetAfter int64) {
	s, _ := o.at(now)
	if !s.open {
		return s.count, 0
	}
	_, n := s.window(now)
	return max(0, s.count-s.taken[n]), max(0, s.start+s.windows*s.period-now)
}

func (o *windowOracle) flush() {
	if o.next != nil {
		*o = *o.next
	}
	o.open, o.windows, o.taken, o.granted = false, 0, map[int64]int64{}, nil
}

func windowNumbers(anchor policy.Anchor) func(*rand.Rand) policy.Limit {
	return func(random *rand.Rand) policy.Limit {
		return policy.Limit{
			Algorithm: policy.FixedWindow, Anchor: anchor,
			Rate: policy.Rate{Count: 1 + random.Int64N(9), Period: time.Duration(1+random.Int64N(2_000_000)) * time.Microsecond},
		}
	}
}

// Stories in which script and oracle once differed.
func TestFixedWindowStoriesThatWentWrong(t *testing.T) {
	t.Parallel()
	client := throttletest.Redis(t).Client()
	for _, story := range []struct {
		seed   uint64
		anchor policy.Anchor
		tell   func(testing.TB, *redis.Client, uint64, func(*rand.Rand) policy.Limit, func(policy.Limit) oracle)
	}{
		{810, policy.AnchorFirst, tellLonelyStory}, // what was adjusted to nothing was cancelled, and then the clock was set back
		{881, policy.AnchorFirst, tellStory},       // a denial while the clock was ahead, noted in a state of several views
		{237, policy.AnchorClock, tellStory},       // slots too far ahead to count by other numbers
	} {
		story.tell(t, client, story.seed, windowNumbers(story.anchor), newWindowOracle)
	}
}
