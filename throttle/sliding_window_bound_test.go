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

// slidingLimiter is a testLimiter of one sliding window, "limit".
type slidingLimiter struct {
	*testLimiter
	limit policy.Limit
}

func newSlidingLimiter(t *testing.T, server *throttletest.Server, limit policy.Limit) *slidingLimiter {
	t.Helper()
	return &slidingLimiter{newTestLimiterOn(t, server, limit), limit}
}

func (b *slidingLimiter) advance(d time.Duration) {
	b.set(b.clock.Now().Add(d.Truncate(time.Microsecond)))
}

func (b *slidingLimiter) reserve(cost int64, wait time.Duration) *throttle.Reservation {
	b.t.Helper()
	return b.testLimiter.reserve(wait, "cost", strconv.FormatInt(cost, 10))
}

// size is how many bytes the limit's state has.
func (b *slidingLimiter) size() int64 {
	b.t.Helper()
	size, err := b.client.StrLen(b.t.Context(), "rm:{api}:limit").Result()
	require.NoError(b.t, err)
	return size
}

func slidingLimit(count int64, span int, precision time.Duration) policy.Limit {
	return sliding("limit", count, time.Duration(span)*precision, precision)
}

func randomSlidingLimit(random *rand.Rand) policy.Limit {
	return slidingLimit(1+random.Int64N(12), 1+random.IntN(12), time.Duration(1+random.Int64N(50_000))*time.Microsecond)
}

// Law 1, by the starts and not by any counter: no interval of one period, with
// both its ends, has starts of more than the count. A start comes as late as Wait
// lets it. What was cancelled does not start.
func TestSlidingWindowIsNeverOver(t *testing.T) {
	t.Parallel()
	eachStory(t, 20, 1, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 5))
		limit := randomSlidingLimit(random)
		b := &slidingLimiter{start(limit), limit}
		starts := b.randomStarts(random, 200)
		most := throttletest.MaxInAnyInterval(starts, limit.Rate.Period+time.Microsecond)
		require.LessOrEqual(t, int64(most), limit.Rate.Count, "seed %d: %s", seed, limit.String())
	})
}

// randomStarts lets requests come and go, and returns when their tasks start, once
// for each token.
func (b *slidingLimiter) randomStarts(random *rand.Rand, operations int) (starts []time.Time) {
	b.t.Helper()
	period, count := b.limit.Rate.Period, b.limit.Rate.Count
	var held []*throttle.Reservation
	// start starts what is due by then.
	start := func(now time.Time) {
		held = slices.DeleteFunc(held, func(r *throttle.Reservation) bool {
			if r.At.After(now) {
				return false
			}
			late := time.Duration(random.Int64N(int64(throttle.UseBy(r).Sub(r.At)))).Truncate(time.Microsecond)
			for range r.Limits[0].Cost {
				starts = append(starts, r.At.Add(late))
			}
			return true
		})
	}
	for range operations {
		switch n := random.IntN(10); {
		case n < 6:
			wait := time.Duration(random.Int64N(int64(3*period))) * time.Duration(random.IntN(2))
			if r := b.reserve(1+random.Int64N(count), wait); r.Outcome == throttle.Granted {
				held = append(held, r)
			}
		case n < 7 && len(held) > 0:
			i := random.IntN(len(held))
			require.NoError(b.t, held[i].Cancel(b.t.Context()))
			held = slices.Delete(held, i, i+1)
		default:
			b.advance(time.Duration(random.Int64N(int64(period))))
			start(b.clock.Now())
		}
	}
	start(b.clock.Now().Add(time.Hour))
	return starts
}

// The published share: with requests that never cease, period/(period+precision) of
// the count is used in each period, whether they wait for slots or ask all the time.
func TestSlidingWindowIsUsed(t *testing.T) {
	t.Parallel()
	const rounds = 12
	server := throttletest.Redis(t)
	for _, c := range []struct {
		count int64
		span  int
	}{{1, 1}, {5, 1}, {5, 4}, {3, 10}, {40, 20}} {
		for _, wait := range []time.Duration{0, time.Hour} {
			limit := slidingLimit(c.count, c.span, 10*time.Millisecond)
			b := newSlidingLimiter(t, server, limit)
			ends := b.clock.Now().Add(rounds * (limit.Rate.Period + limit.Precision))
			random := rand.New(rand.NewPCG(1, uint64(c.span)))
			used := int64(0)
			for b.clock.Now().Before(ends) {
				r := b.reserve(1, wait)
				if r.Outcome == throttle.Granted && r.At.Before(ends) {
					used++
				}
				if r.At.After(b.clock.Now()) { // nobody is served before: ask again then, or a bit later
					b.set(r.At.Add(time.Duration(random.Int64N(int64(2 * time.Millisecond)))))
				}
			}
			assert.Equal(t, rounds*c.count, used, "%s, wait %s", limit.String(), wait)
		}
	}
}

// Law 3: a denied request passes after exactly its RetryAfter, at a bucket's
// start, and not a microsecond earlier; for any cost, and with slots ahead.
func TestSlidingWindowPatienceIsRewarded(t *testing.T) {
	t.Parallel()
	denied, server := 0, throttletest.Redis(t)
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 6))
		b := newSlidingLimiter(t, server, randomSlidingLimit(random))
		for range 40 {
			cost := 1 + random.Int64N(b.limit.Rate.Count)
			b.reserve(cost, time.Duration(random.IntN(2))*3*b.limit.Rate.Period)
			b.advance(time.Duration(random.Int64N(int64(b.limit.Rate.Period / 4))))
			r := b.reserve(cost, 0)
			if r.Outcome == throttle.Granted {
				continue
			}
			denied++
			require.Zero(t, r.At.UnixMicro()%b.limit.Precision.Microseconds(), "seed %d: no bucket's start", seed)
			b.set(r.At.Add(-time.Microsecond))
			require.Equal(t, throttle.Denied, b.reserve(cost, 0).Outcome, "seed %d: a microsecond early", seed)
			b.set(r.At)
			require.Equal(t, throttle.Granted, b.reserve(cost, 0).Outcome, "seed %d: on time", seed)
		}
	}
	require.Greater(t, denied, 300, "there was hardly anything to be patient about")
}

// Memory is bounded by the number of buckets, however much passes, and whatever
// the clock does.
func TestSlidingWindowStaysSmall(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	b := newSlidingLimiter(t, server, slidingLimit(10_000_000, 1000, time.Millisecond))
	b.reserve(1, 0)
	assert.Less(t, b.size(), int64(80), "one bucket")
	for range 1100 {
		b.advance(time.Millisecond)
		b.reserve(9000, 0)
	}
	const full = 1001*int64(len(",9000")) + 80
	assert.Less(t, b.size(), full)
	for range 100 {
		b.reserve(9, 0)
	}
	assert.Less(t, b.size(), full, "more of the same bucket")

	b = newSlidingLimiter(t, server, slidingLimit(1, 1, time.Millisecond))
	for range 12 {
		_, err := throttle.ReserveTogether(b.limiter, slices.Repeat([]throttle.Request{request(time.Second)}, 499)...)
		require.NoError(t, err)
		b.advance(-time.Hour)
	}
	assert.Less(t, b.size(), int64(4000*len(",1+1")+12*len("+3600000")+120), "slots ahead of a clock that stepped back")
	assert.Equal(t, throttle.Granted, b.reserve(1, 0).Outcome)
}

// A clock that steps back far locks nobody out: what it left ahead is far ahead,
// even where a bucket was known to have no room in between.
func TestSlidingWindowClockStepsBack(t *testing.T) {
	t.Parallel()
	b := newSlidingLimiter(t, throttletest.Redis(t), slidingLimit(3, 5, time.Second))
	for range 9 {
		require.Equal(t, throttle.Granted, b.reserve(1, time.Hour).Outcome)
	}
	b.advance(11 * time.Second)
	require.Equal(t, throttle.Granted, b.reserve(1, time.Hour).Outcome)
	b.advance(-11 * time.Second)
	assert.Equal(t, throttle.Granted, b.reserve(1, 0).Outcome, "what was counted here is forgotten, and the next slots are 6s ahead")
	b.advance(-10 * time.Minute)
	for range 3 {
		assert.Equal(t, throttle.Granted, b.reserve(1, 0).Outcome)
	}
	assert.Equal(t, 6*time.Second, b.reserve(1, 0).At.Sub(b.clock.Now()))
}
