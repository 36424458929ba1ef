package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// keeping returns a limit of each kind that has ten tokens and keeps three of them.
func keeping() map[string]policy.Limit {
	const count = 10
	limits := fivePerMinute()
	for kind, limit := range limits {
		switch limit.Algorithm {
		case policy.Spacing: // which keeps none
			delete(limits, kind)
			continue
		case policy.Concurrency:
			limit.Slots = count
		case policy.TokenBucket:
			limit.Rate.Count, limit.Burst = count, count
		default:
			limit.Rate.Count = count
		}
		limit.Cost, limit.Headroom = "cost", policy.Headroom{Percent: 30}
		limits[kind] = limit
	}
	return limits
}

func eachKeeping(t *testing.T, test func(t *testing.T, server *throttletest.Server, limit policy.Limit)) {
	t.Helper()
	for kind, limit := range keeping() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) { test(t, server, limit) })
		})
	}
}

func urgently(wait time.Duration, attributes ...string) throttle.Request {
	return request(wait, append(attributes, policy.PriorityAttribute, policy.PriorityHigh)...)
}

// What is kept is for urgent tasks alone, and for them at once; a peek says the same,
// and a denial leaves what is kept where it is.
func TestHeadroomIsKept(t *testing.T) {
	t.Parallel()
	eachKeeping(t, func(t *testing.T, server *throttletest.Server, limit policy.Limit) {
		policy := throttletest.UniqueName(t)
		limiter := newLimiter(t, server.Client(), policy, limit)
		ask := func(r throttle.Request, want throttle.Outcome) *throttle.Reservation {
			t.Helper()
			r.Policy = policy
			peeked, err := limiter.Peek(t.Context(), r)
			require.NoError(t, err)
			got, err := limiter.Reserve(t.Context(), r)
			require.NoError(t, err)
			require.Equal(t, want, got.Outcome)
			require.Equal(t, want, peeked.Outcome, "a peek says the same")
			return got
		}
		for range 7 {
			ask(request(0), throttle.Granted)
		}
		denied := ask(request(0), throttle.Denied)
		assert.EqualValues(t, 3, denied.Limits[0].Remaining)
		assert.Positive(t, denied.RetryAfter())
		ask(urgently(0, "cost", "4"), throttle.Denied)
		ask(urgently(0, "cost", "2"), throttle.Granted)
		ask(request(0), throttle.Denied)
		ask(urgently(0), throttle.Granted)
		ask(urgently(0), throttle.Denied)

		for cost, want := range map[string]throttle.Outcome{"7": throttle.Denied, "8": throttle.Never} {
			assert.Equal(t, want, ask(request(0, "cost", cost), want).Outcome, cost)
		}
		never := ask(request(0, "cost", "8"), throttle.Never)
		assert.EqualError(t, never.Wait(t.Context()), fmt.Sprintf(
			`cost 8 can never pass: limit "l" of policy %q holds at most 7, besides 3 kept for tasks of high priority`, policy))
		ask(urgently(0, "cost", "11"), throttle.Never)
	})
}

// Urgent tasks have what is kept at once also where others have slots ahead already, and
// again when it has come back while others never cease.
func TestHeadroomIsThereAtOnce(t *testing.T) {
	t.Parallel()
	for kind, limit := range keeping() {
		if limit.Algorithm == policy.Concurrency {
			continue // which has no slots ahead
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newTestLimiterOn(t, throttletest.Redis(t), limit)
			ask := func(r throttle.Request) throttle.Outcome {
				got, err := b.limiter.Reserve(t.Context(), r)
				require.NoError(t, err)
				return got.Outcome
			}
			ahead := 0
			for range 17 {
				if r := b.reserve(90 * time.Second); r.Outcome == throttle.Granted && r.RetryAfter() > 0 {
					ahead++
				}
			}
			require.GreaterOrEqual(t, ahead, 6, "slots ahead")
			for range 3 {
				require.Equal(t, throttle.Granted, ask(urgently(0)), "at once")
			}
			require.Equal(t, throttle.Denied, ask(urgently(0)))
			again := 0
			for second := range 240 {
				b.at(time.Duration(second) * time.Second)
				for range 5 {
					b.reserve(20 * time.Second)
				}
				if second >= 60 && ask(urgently(0)) == throttle.Granted {
					again++
				}
			}
			assert.GreaterOrEqual(t, again, 2*3, "in three minutes")
		})
	}
}

// What a bucket keeps is there at once behind any number of slots ahead, of whatever costs,
// and comes back as soon as those are past that had to do without.
func TestHeadroomBehindManySlots(t *testing.T) {
	t.Parallel()
	limit := keeping()["token_bucket"]
	limit.Rate.Count, limit.Rate.Period = 7, time.Second // a token is no whole microsecond
	eachStory(t, 6, 1, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 23))
		b := start(limit)
		ask := func(r throttle.Request) *throttle.Reservation {
			got, err := b.limiter.Reserve(t.Context(), r)
			require.NoError(t, err)
			return got
		}
		mostCost := 1 + int64(seed%2)*3
		fill := func() {
			for ask(request(30*time.Second, "cost", strconv.FormatInt(1+random.Int64N(mostCost), 10))).Outcome == throttle.Granted {
			}
		}
		for now := time.Duration(0); now < 80*time.Second; now += 37 * time.Second {
			b.at(now)
			fill()
			require.Equal(t, throttle.Granted, ask(urgently(0, "cost", "2")).Outcome, now)
			require.Equal(t, throttle.Granted, ask(urgently(0)).Outcome, now)
			require.Equal(t, throttle.Denied, ask(urgently(0)).Outcome, now)
			fill()
			require.Equal(t, throttle.Denied, ask(urgently(0)).Outcome, now)
		}
	})
}

// Law 3 with headroom: a request passes after exactly its RetryAfter, and not a
// microsecond before.
func TestHeadroomKeepsItsWord(t *testing.T) {
	t.Parallel()
	for kind, limit := range keeping() {
		if limit.Algorithm == policy.Concurrency {
			continue // nobody knows when a slot is free
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			eachStory(t, 10, 1, func(t *testing.T, start makeLimiter, seed uint64) {
				random := rand.New(rand.NewPCG(seed, 17))
				b := start(limit)
				now := time.Duration(0)
				for range 12 {
					cost := strconv.FormatInt(1+random.Int64N(7), 10)
					ask := request(0, "cost", cost)
					if random.IntN(3) == 0 {
						ask = urgently(0, "cost", cost)
					}
					r, err := b.limiter.Reserve(t.Context(), ask)
					require.NoError(t, err)
					if r.Outcome == throttle.Granted {
						continue
					}
					now += r.RetryAfter()
					b.at(now - time.Microsecond)
					peeked, err := b.limiter.Peek(t.Context(), ask)
					require.NoError(t, err)
					require.Equal(t, throttle.Denied, peeked.Outcome, "seed %d: a microsecond early", seed)
					b.at(now)
					r, err = b.limiter.Reserve(t.Context(), ask)
					require.NoError(t, err)
					require.Equal(t, throttle.Granted, r.Outcome, "seed %d: on time", seed)
				}
			})
		})
	}
}

// Law 1 with headroom, judged by the starts alone: all starts stay within the limit,
// and those of normal tasks within what is not kept, where that is a bound.
func TestHeadroomIsNeverOver(t *testing.T) {
	t.Parallel()
	eachStory(t, 40, 2, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 19))
		judge := randomJudged(random, "l")
		if judge.limit.Capacity() < 2 {
			return
		}
		judge.limit.Headroom.Tokens = 1 + random.Int64N(judge.limit.Capacity()-1)
		limits := []policy.Limit{judge.limit}
		if random.IntN(2) == 0 { // which puts slots off
			limits = append(limits, window("other", 1+random.Int64N(4), 700*time.Millisecond, policy.AnchorClock))
			limits[1].Per = "user"
		}
		b := start(limits...)
		var now time.Duration
		var all, normal []time.Time
		for range 120 {
			now += time.Duration(random.Int64N(int64(150 * time.Millisecond))).Truncate(time.Microsecond)
			b.at(now)
			wait := time.Duration(random.IntN(3)) * 500 * time.Millisecond
			ask := request(wait, "user", fmt.Sprint(random.IntN(3)))
			if random.IntN(3) == 0 {
				ask = urgently(wait, "user", fmt.Sprint(random.IntN(3)))
			}
			r, err := b.limiter.Reserve(t.Context(), ask)
			require.NoError(t, err)
			if r.Outcome != throttle.Granted {
				continue
			}
			if random.IntN(8) == 0 && r.At.After(noon.Add(now)) {
				require.NoError(t, r.Cancel(t.Context()))
				continue
			}
			all = append(all, r.At)
			if ask.Attributes[policy.PriorityAttribute] == "" {
				normal = append(normal, r.At)
			}
		}
		require.LessOrEqual(t, int64(judge.count(all)), judge.most, "seed %d: %s", seed, judge.limit.String())
		most := judge.most - judge.limit.Headroom.Tokens
		if judge.limit.Refill == policy.RefillInterval {
			return // where a refill may be all that the bucket holds
		}
		require.LessOrEqual(t, int64(judge.count(normal)), most, "seed %d: normal tasks of %s", seed, judge.limit.String())
	})
}

// Who has a slot keeps it when it asks again, whatever is kept for others.
func TestHeadroomDoesNotTakeSlotsAway(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, keeping()["concurrency"])
	ask := func(task string, r throttle.Request) throttle.Outcome {
		r.TaskID = task
		got, err := b.limiter.Reserve(t.Context(), r)
		require.NoError(t, err)
		return got.Outcome
	}
	for i := range 7 {
		require.Equal(t, throttle.Granted, ask(fmt.Sprint("n", i), request(0)))
	}
	for i := range 3 {
		require.Equal(t, throttle.Granted, ask(fmt.Sprint("u", i), urgently(0)))
	}
	assert.Equal(t, throttle.Granted, ask("n0", request(0)))
	assert.Equal(t, throttle.Denied, ask("n7", request(0)))
}
