package throttle_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func spacing(name string, count int64, period time.Duration) policy.Limit {
	return policy.Limit{Name: name, Algorithm: policy.Spacing, Rate: policy.Rate{Count: count, Period: period}}
}

// apart judges starts of cost 1 by the definition of a spacing: the most of them, over all
// intervals, besides the whole spacings that fit in. Slots are told in whole microseconds,
// rounded up, so an interval may be less than one of these longer than it looks.
func apart(count int64, period time.Duration) func([]time.Time) int {
	return func(starts []time.Time) int {
		most := 0
		sorted := slices.SortedFunc(slices.Values(starts), time.Time.Compare)
		// The starts from each on are judged by how far the line had got by then.
		var line time.Duration // what is left of spacings, in parts of which count make a nanosecond
		for i, at := range sorted {
			if i > 0 {
				line = max(0, line-at.Sub(sorted[i-1])*time.Duration(count))
			}
			before := max(0, line-(time.Microsecond-1)*time.Duration(count))
			most = max(most, 1+int((before+period-1)/period))
			line += period
		}
		return most
	}
}

func TestApart(t *testing.T) {
	t.Parallel()
	at := func(us ...int) (starts []time.Time) {
		for _, n := range us {
			starts = append(starts, noon.Add(time.Duration(n)*time.Microsecond))
		}
		return starts
	}
	assert.Equal(t, 0, apart(3, time.Second)(nil))
	assert.Equal(t, 1, apart(3, time.Second)(at(0, 333_334, 666_667, 1_000_000, 5_000_000)))
	assert.Equal(t, 2, apart(3, time.Second)(at(0, 333_334, 666_666)))
	assert.Equal(t, 2, apart(1, time.Second)(at(0, 999_999)))
	assert.Equal(t, 1, apart(1, time.Second)(at(2_000_000, 1_000_000)))
	assert.Equal(t, 3, apart(1, time.Second)(at(0, 1, 2)))
}

// One start a second: each step is at an instant, of a cost, and says when it may start.
func TestSpacingSequence(t *testing.T) {
	t.Parallel()
	const s = time.Second
	limit := spacing("l", 60, time.Minute)
	limit.Cost = "cost"
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newTestLimiterOn(t, server, limit)
		for i, step := range []struct {
			at, wait  time.Duration
			cost      int64
			retry     time.Duration
			granted   bool
			remaining int64
			reset     time.Duration
		}{
			{0, 0, 1, 0, true, 0, s},
			{0, 0, 1, s, false, 0, s},
			{s - 1000, 0, 1, 1000, false, 0, 1000},
			{s, 0, 1, 0, true, 0, s},
			{s, 5 * s, 3, s, true, 0, 4 * s}, // it starts in its turn, and keeps the next away
			{s, 5 * s, 1, 4 * s, true, 0, 5 * s},
			{s, 4 * s, 1, 5 * s, false, 0, 5 * s},
			{6 * s, 0, 1, 0, true, 0, s},
			{20 * s, 0, 1, 0, true, 0, s}, // nothing was saved up
			{20 * s, 0, 1, s, false, 0, s},
			{30 * s, 0, 1000, 0, true, 0, 1000 * s},
		} {
			b.at(step.at)
			r := b.reserve(step.wait, "cost", strconv.FormatInt(step.cost, 10))
			assert.Equal(t, step.granted, r.Outcome == throttle.Granted, "step %d", i)
			assert.Equal(t, step.retry, r.RetryAfter(), "step %d", i)
			assert.Equal(t, step.remaining, r.Limits[0].Remaining, "step %d", i)
			assert.Equal(t, step.reset, r.Limits[0].ResetAfter, "step %d", i)
		}
	})
}

// A third of a second is no whole number of microseconds; nothing of it is lost or gained.
func TestSpacingIsExact(t *testing.T) {
	t.Parallel()
	for _, costs := range [][]int64{{1}, {2, 1, 5}} {
		limit := spacing("l", 3, time.Second)
		limit.Cost = "cost"
		b := newTestLimiterOn(t, throttletest.Redis(t), limit)
		line := int64(0)
		for i := range 1000 {
			cost := costs[i%len(costs)]
			r := b.reserve(time.Hour, "cost", strconv.FormatInt(cost, 10))
			require.Equal(t, throttle.Granted, r.Outcome)
			require.Equal(t, (line*1_000_000+2)/3, r.At.Sub(noon).Microseconds(), i)
			line += cost
			if i%7 == 0 { // and it does not matter when they come
				b.at(r.At.Sub(noon))
			}
		}
	}
}

// What is given back: the latest slot exactly, another as a free slot, and each once.
func TestSpacingGivesBack(t *testing.T) {
	t.Parallel()
	limit := spacing("l", 1, time.Second)
	limit.Cost = "cost"
	for name, test := range map[string]struct {
		costs   []string // of slots, in order
		adjusts map[int]string
		cancels []int
		next    []time.Duration // slots of cost 1 then
	}{
		"the latest":         {[]string{"1", "1", "4"}, nil, []int{2}, []time.Duration{2, 3}},
		"one in the midst":   {[]string{"1", "1", "1", "1"}, nil, []int{2}, []time.Duration{2, 4}},
		"all, last first":    {[]string{"1", "1", "1"}, nil, []int{2, 1, 0}, []time.Duration{0, 1}},
		"all, first first":   {[]string{"1", "1", "1"}, nil, []int{0, 1, 2}, []time.Duration{0, 1}},
		"of a higher cost":   {[]string{"1", "3", "1"}, nil, []int{1}, []time.Duration{1, 5}},
		"twice":              {[]string{"1", "1", "1"}, nil, []int{1, 1}, []time.Duration{1, 3}},
		"more of one":        {[]string{"1", "1"}, map[int]string{0: "3"}, nil, []time.Duration{4, 5}},
		"less of the latest": {[]string{"1", "9"}, map[int]string{1: "2"}, nil, []time.Duration{3, 4}},
		"nothing of it":      {[]string{"1", "9"}, map[int]string{1: "0"}, nil, []time.Duration{2, 3}},
		"less of another":    {[]string{"9", "1"}, map[int]string{0: "2"}, nil, []time.Duration{10, 11}},
		"more, and back":     {[]string{"1", "1"}, map[int]string{1: "5"}, []int{1}, []time.Duration{1, 2}},
		"more, not its own":  {[]string{"1", "1", "1"}, map[int]string{0: "5"}, []int{0}, []time.Duration{0, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				b := newTestLimiterOn(t, server, limit)
				var held []*throttle.Reservation
				for _, cost := range test.costs {
					held = append(held, b.reserve(time.Minute, "cost", cost))
				}
				for i, cost := range test.adjusts {
					require.NoError(t, held[i].Adjust(t.Context(), map[string]string{"cost": cost}))
				}
				for _, i := range test.cancels {
					require.NoError(t, held[i].Cancel(t.Context()))
				}
				for _, want := range test.next {
					assert.Equal(t, want, b.reserve(time.Minute).At.Sub(noon)/time.Second)
				}
			})
		})
	}
}

// Law 14: an adjustment is made once, also if its answer was lost.
func TestSpacingAdjustsOnce(t *testing.T) {
	t.Parallel()
	limit := spacing("l", 1, time.Hour)
	limit.Cost = "cost"
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newProxied(t, server, policy.Policy{Limits: []policy.Limit{limit}})
		r := b.reserve(0, "cost", "9")
		for cost, hours := range map[string]float64{"6": 6, "8": 8} {
			b.losing("settle", func() error { return r.Adjust(t.Context(), map[string]string{"cost": cost}) })
			assert.InDelta(t, hours, b.reserve(0).RetryAfter().Hours(), 0.2)
		}
	})
}

// A slot that another limit puts off leaves the time before it to others, and that behind
// it to itself.
func TestSpacingBeforeASlotThatWasPutOff(t *testing.T) {
	t.Parallel()
	own := window("own", 1, 10*time.Second, policy.AnchorClock)
	own.Per = "user"
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newTestLimiterOn(t, server, spacing("shared", 1, 2*time.Second), own)
		for _, step := range []struct {
			user string
			want time.Duration
		}{{"a", 0}, {"a", 10}, {"b", 2}, {"b", 12}, {"c", 4}, {"d", 6}, {"e", 8}, {"f", 14}, {"c", 16}} {
			assert.Equal(t, step.want, b.reserve(time.Minute, "user", step.user).At.Sub(noon)/time.Second, step.user)
		}
	})
}

// Law 1 for starts of any cost, whatever is given back or adjusted, by one or two versions of
// the numbers: of all, each keeps the next away for as long as it cost, as far as nothing of
// it was given back.
func TestSpacingIsNeverOver(t *testing.T) {
	t.Parallel()
	eachStory(t, 60, 2, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 5))
		count, period := 1+random.Int64N(9), time.Duration(1+random.IntN(2_000_000))*9*time.Microsecond
		limits := []policy.Limit{spacing("l", count, period), window("own", 2, 3*period, policy.AnchorClock)}
		limits[0].Cost, limits[1].Per = "cost", "user"
		b := start(limits[:1+random.IntN(2)]...)
		type slot struct {
			*throttle.Reservation
			cost int64
		}
		var starts, ahead []slot
		now := time.Duration(0)
		for range 120 {
			switch n := random.IntN(10); {
			case n < 6:
				cost := 1 + random.Int64N(3)*random.Int64N(2)
				r := b.reserve(time.Duration(random.Int64N(int64(4*period))), "cost", strconv.FormatInt(cost, 10), "user", strconv.Itoa(random.IntN(4)))
				if r.Outcome == throttle.Granted {
					ahead = append(ahead, slot{r, cost})
				}
			case n < 8 && len(ahead) > 0:
				i := random.IntN(len(ahead))
				if random.IntN(3) == 0 {
					ahead[i].cost = 1 // what is less may come back, but for one
					require.NoError(t, ahead[i].Adjust(t.Context(), map[string]string{"cost": strconv.Itoa(random.IntN(5))}))
					continue
				}
				require.NoError(t, ahead[i].Cancel(t.Context()))
				ahead = slices.Delete(ahead, i, i+1)
			default:
				now += time.Duration(random.Int64N(int64(period))).Truncate(time.Microsecond)
				b.at(now)
				ahead = slices.DeleteFunc(ahead, func(s slot) bool {
					if s.At.After(noon.Add(now)) {
						return false
					}
					starts = append(starts, s)
					return true
				})
			}
		}
		starts = append(starts, ahead...)
		slices.SortFunc(starts, func(a, b slot) int { return a.At.Compare(b.At) })
		for i := 1; i < len(starts); i++ {
			gap := starts[i].At.Sub(starts[i-1].At) + time.Microsecond
			require.Greater(t, int64(gap)*count, starts[i-1].cost*int64(period), "seed %d: %s after one of cost %d",
				seed, gap, starts[i-1].cost)
		}
	})
}
