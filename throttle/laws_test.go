package throttle_test

import (
	"fmt"
	"maps"
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

// Law 3: with nobody else about, a denied request passes after exactly its
// RetryAfter, and not a microsecond before.
func TestPatienceIsRewarded(t *testing.T) {
	t.Parallel()
	eachStory(t, 60, 2, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 3))
		limits := randomLimits(random)
		b := start(limits...)
		now := time.Duration(random.Int64N(int64(time.Minute))).Truncate(time.Microsecond)
		b.at(now)
		for range 12 {
			cost := strconv.FormatInt(1+random.Int64N(smallest(limits)), 10)
			r := b.reserve(time.Duration(random.Int64N(2))*time.Second, "cost", cost)
			if r.Outcome == throttle.Granted {
				continue
			}
			retry := b.reserve(0, "cost", cost).RetryAfter()
			require.Positive(t, retry)
			b.at(now + retry - time.Microsecond)
			require.Equal(t, throttle.Denied, b.reserve(0, "cost", cost).Outcome, "seed %d: a microsecond early", seed)
			now += retry
			b.at(now)
			require.Equal(t, throttle.Granted, b.reserve(0, "cost", cost).Outcome, "seed %d: on time", seed)
		}
	})
}

func randomLimits(random *rand.Rand) []policy.Limit {
	limits := make([]policy.Limit, 1+random.IntN(3))
	for i := range limits {
		name, count := fmt.Sprintf("l%d", i), 1+random.Int64N(9)
		period := time.Duration(1+random.Int64N(3_000_000)) * time.Microsecond
		switch random.IntN(7) {
		case 0:
			limits[i] = bucket(name, count, period, 1+random.Int64N(9))
		case 3:
			limits[i] = bucket(name, count, period, 1+random.Int64N(9))
			limits[i].Refill = policy.RefillInterval
		case 4:
			limits[i] = policy.Limit{
				Name: name, Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: count, Period: period},
			}
		case 5:
			precision := time.Microsecond + (period / 20).Truncate(time.Microsecond)
			limits[i] = policy.Limit{
				Name: name, Algorithm: policy.SlidingWindow, Precision: precision,
				Rate: policy.Rate{Count: count, Period: 20 * precision},
			}
		case 6:
			limits[i] = spacing(name, count, max(period, 9*time.Microsecond))
		case 1:
			limits[i] = window(name, count, period, policy.AnchorClock)
		case 2:
			limits[i] = window(name, count, period, policy.AnchorFirst)
		}
		limits[i].Cost = "cost"
	}
	return limits
}

// smallest is the most that all of them let a request cost; of a spacing as of the others.
func smallest(limits []policy.Limit) int64 {
	least := int64(9)
	for i := range limits {
		least = min(least, limits[i].MostCost())
	}
	return least
}

// Law 2: what does not pass changes nothing.
func TestDenialsChangeNothing(t *testing.T) {
	t.Parallel()
	wide, narrow := bucket("wide", 100, time.Second, 100), window("narrow", 1, time.Minute, policy.AnchorClock)
	wide.Cost, narrow.Per = "cost", "user"
	b := newTestLimiter(t, wide, narrow)
	require.Equal(t, throttle.Granted, b.reserve(0, "user", "ann").Outcome)
	before := b.contents()
	require.NotEmpty(t, before)

	r := b.reserve(30*time.Second, "user", "ann")
	assert.Equal(t, throttle.Denied, r.Outcome)
	assert.Equal(t, "narrow", r.HeldBy)
	assert.Equal(t, time.Minute, r.RetryAfter())
	assert.Equal(t, int64(99), r.Limits[0].Remaining, "the limit that passed gave nothing")

	r = b.reserve(0, "user", "bob", "cost", "101")
	assert.Equal(t, throttle.Never, r.Outcome)
	never := (*policy.NeverError)(nil)
	require.ErrorAs(t, r.Wait(t.Context()), &never)
	assert.EqualError(t, never, `cost 101 can never pass: limit "wide" of policy "api" holds at most 100`)

	for name, attributes := range map[string][]string{
		`attribute "user" is missing`:                           {},
		`attribute "cost" is "0", not a whole number above 0`:   {"user", "bob", "cost", "0"},
		`attribute "cost" is "-1", not a whole number above 0`:  {"user", "bob", "cost", "-1"},
		`attribute "cost" is "1.5", not a whole number above 0`: {"user", "bob", "cost", "1.5"},
		`attribute "cost" is "", not a whole number above 0`:    {"user", "bob", "cost", ""},
	} {
		_, err := b.limiter.Reserve(t.Context(), request(0, attributes...))
		bad := (*policy.AttributeError)(nil)
		require.ErrorAs(t, err, &bad)
		assert.ErrorContains(t, err, name)
	}
	_, err := b.limiter.Reserve(t.Context(), throttle.Request{Policy: "other"})
	assert.ErrorIs(t, err, throttle.ErrUnknownPolicy)

	d, err := b.limiter.Peek(t.Context(), request(0, "user", "bob"))
	require.NoError(t, err)
	assert.Equal(t, throttle.Granted, d.Outcome)
	assert.Equal(t, before, b.contents())
}

// Law 1 by each algorithm's definition, over the slots that were granted and not
// given back, in whatever order that was.
func TestNeverOverWhateverIsCancelled(t *testing.T) {
	t.Parallel()
	kinds := maps.Clone(conforming)
	// No cost is too high for a spacing, so the suite has no question for it about that.
	kinds["spacing"] = func(count int64, period time.Duration, _ int64) (policy.Limit, throttletest.Model) {
		return spacing("l", count, period), throttletest.Model{Holds: func(starts []throttletest.Start) bool {
			var times []time.Time
			for _, start := range starts {
				times = append(times, start.At)
			}
			return apart(count, period)(times) <= 1
		}}
	}
	for _, name := range []string{"token bucket", "interval bucket", "spacing", "sliding log", "fixed window by clock"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStory(t, 40, 1, func(t *testing.T, start makeLimiter, seed uint64) {
				random := rand.New(rand.NewPCG(seed, 7))
				count, burst := 1+random.Int64N(7), 1+random.Int64N(4)
				limit, model := kinds[name](count, time.Second, burst)
				if name == "interval bucket" { // what was given back starts in another interval
					model = throttletest.SlidingLogModel(burst+count, time.Second)
				}
				require.True(t, model.Holds(startsOf(start(limit), random)), "seed %d", seed)
			})
		})
	}
}

// startsOf lets requests come and go at random, and returns the starts that came
// of them.
func startsOf(b *testLimiter, random *rand.Rand) (starts []throttletest.Start) {
	b.t.Helper()
	var held []*throttle.Reservation
	now := time.Duration(0)
	for range 60 {
		if random.IntN(3) > 0 {
			if r := b.reserve(time.Minute); r.Outcome == throttle.Granted {
				held = append(held, r)
			}
		} else if len(held) > 0 {
			i := random.IntN(len(held))
			require.NoError(b.t, held[i].Cancel(b.t.Context()))
			held = append(held[:i], held[i+1:]...)
		}
		if random.IntN(4) == 0 {
			now += time.Duration(random.Int64N(int64(time.Second))).Truncate(time.Microsecond)
			b.at(now)
			held = slices.DeleteFunc(held, func(r *throttle.Reservation) bool {
				due := !r.At.After(noon.Add(now))
				if due {
					starts = append(starts, throttletest.Start{At: r.At, Cost: 1})
				}
				return due
			})
		}
	}
	for _, r := range held {
		starts = append(starts, throttletest.Start{At: r.At, Cost: 1})
	}
	return starts
}

// A waiting request gets the first instant at which all limits pass, and takes
// from all of them there.
func TestWaitingTakesTheFirstInstantOfAll(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("fast", 1, time.Second, 1), window("slow", 2, 10*time.Second, policy.AnchorClock))
	for i, want := range []time.Duration{0, time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second} {
		r := b.reserve(time.Minute)
		require.Equal(t, throttle.Granted, r.Outcome)
		assert.Equal(t, want, r.At.Sub(noon), "slot %d", i)
	}
	r := b.reserve(time.Second)
	assert.Equal(t, throttle.Denied, r.Outcome)
	assert.Equal(t, "fast", r.HeldBy)
	assert.Equal(t, 21*time.Second, r.RetryAfter())
}
