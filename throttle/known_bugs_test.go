package throttle_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Well-known limiters have bugs that were measured. Each has a test here that our
// limits of every kind must pass; but for a TTL that is shorter than the state, and a
// clock that steps back, by which TestConforms judges them.

// fivePerMinute is a limit of each kind.
func fivePerMinute() map[string]policy.Limit {
	const count = 5
	rate := policy.Rate{Count: count, Period: time.Minute}
	interval := bucket("l", count, time.Minute, count)
	interval.Refill = policy.RefillInterval
	return map[string]policy.Limit{
		"token_bucket":       bucket("l", count, time.Minute, count),
		"interval_bucket":    interval,
		"fixed_window_clock": window("l", count, time.Minute, policy.AnchorClock),
		"fixed_window_first": window("l", count, time.Minute, policy.AnchorFirst),
		"sliding_log":        {Name: "l", Algorithm: policy.SlidingLog, Rate: rate},
		"sliding_window":     {Name: "l", Algorithm: policy.SlidingWindow, Rate: rate},
		"concurrency":        {Name: "l", Algorithm: policy.Concurrency, Slots: count, Lease: time.Minute},
		"spacing":            {Name: "l", Algorithm: policy.Spacing, Rate: rate},
	}
}

// eachKind runs a test for a limit of each kind, but for those named.
func eachKind(t *testing.T, test func(t *testing.T, limit policy.Limit), but ...string) {
	t.Helper()
	limits := fivePerMinute()
	for _, kind := range but {
		delete(limits, kind)
	}
	for kind, limit := range limits {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, limit)
		})
	}
}

// spend takes all that the first limit has, which is fresh.
func spend(b *testLimiter) {
	b.t.Helper()
	for range b.limiter.Config().Policies[0].Limits[0].Capacity() {
		require.Equal(b.t, throttle.Granted, b.reserve(0).Outcome)
	}
	require.Equal(b.t, throttle.Denied, b.reserve(0).Outcome)
}

// Denials that consume lock out who asks again; peeks that consume, or write, count
// calls nobody made. Here with slots ahead, too, and with what can never pass.
func TestBugDenialsAndPeeksConsume(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost = "points"
		b := newTestLimiter(t, limit, bucket("other", 50, time.Hour, 50))
		peek := func() {
			_, err := b.limiter.Peek(t.Context(), request(0))
			require.NoError(t, err)
		}
		peek()
		require.Empty(t, b.contents(), "a peek wrote")
		spend(b)
		b.reserve(time.Hour, "points", "2")
		before := b.contents()
		for _, points := range []string{"1", "3", "5"} {
			require.Equal(t, throttle.Denied, b.reserve(0, "points", points).Outcome)
			require.Equal(t, throttle.Denied, b.reserve(time.Second, "points", points).Outcome)
			require.Equal(t, throttle.Never, b.reserve(time.Hour, "points", points+"00000000").Outcome)
			peek()
		}
		assert.Equal(t, before, b.contents())
	})
}

// Keys that never expire fill the server; and keys that expire while their state matters
// let too many through. An hour is long against any pause.
func TestBugKeysWithoutExpiry(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Per = "user"
		if limit.Rate.Period = time.Hour; limit.Algorithm == policy.Concurrency {
			limit.Rate.Period, limit.Lease = 0, time.Hour
		}
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			limiter, client := newLimiter(t, server.Client(), "api", limit), server.Client()
			for i := range 20 {
				user := strconv.Itoa(i)
				r, err := limiter.Reserve(t.Context(), request(time.Hour, "user", user))
				require.NoError(t, err)
				require.Equal(t, throttle.Granted, r.Outcome)
				left := client.PTTL(t.Context(), "rm:{api}:l:"+user).Val()
				reset := r.Limits[0].ResetAfter
				assert.LessOrEqual(t, left, reset+time.Second+time.Millisecond, "a log's second is for clocks set back")
				assert.Greater(t, left, reset-30*time.Minute)
				if i%2 == 0 {
					require.NoError(t, r.Cancel(t.Context()))
				}
			}
			require.NoError(t, limiter.Freeze(t.Context(), "api", time.Hour))
			for _, key := range client.Keys(t.Context(), "*").Val() {
				assert.Positive(t, client.PTTL(t.Context(), key).Val(), key)
			}
		})
		b := newTestLimiter(t, limit)
		b.reserve(time.Minute, "user", "ann")
		b.clock.Advance(3 * time.Hour)
		assert.Empty(t, b.contents())
	})
}

// TIME's microseconds, put behind its seconds as text without padding, make time
// jump: 9 µs after a second would come after 10 µs before the next.
func TestBugUnpaddedMicroseconds(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		b := newTestLimiter(t, limit)
		b.at(9 * time.Microsecond)
		r := b.reserve(0)
		assert.Equal(t, noon.Add(9*time.Microsecond), r.Now.UTC())
		for spent := int64(1); spent < limit.Capacity(); spent++ {
			require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
		}
		b.at(999990 * time.Microsecond)
		assert.Equal(t, throttle.Denied, b.reserve(0).Outcome)
	})
}

// Time and tokens kept as floats make what remains wrong by one, for most rates.
func TestBugRemainingWrongByOne(t *testing.T) {
	t.Parallel()
	eachStory(t, 40, 10, func(t *testing.T, start makeLimiter, seed uint64) {
		count := 3*int64(seed) + 1
		limit := bucket("l", count, time.Duration(count%7+1)*time.Second, count)
		b := start(limit)
		for left := count - 1; left >= 0; left-- {
			r := b.reserve(0)
			require.Equal(t, throttle.Granted, r.Outcome, "%s", limit.String())
			require.Equal(t, left, r.Limits[0].Remaining, "%s", limit.String())
		}
		require.Equal(t, throttle.Denied, b.reserve(0).Outcome, "%s", limit.String())
	})
}

// Costs that are no costs give tokens away, or take what is never there.
func TestBugUncheckedCosts(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost = "points"
		b := newTestLimiter(t, limit)
		for _, cost := range []string{"0", "-1", "-9223372036854775808", "1.5", "1e3", "0x1", "", " 1", "9223372036854775808", "NaN"} {
			_, err := b.limiter.Reserve(t.Context(), request(0, "points", cost))
			attribute := (*policy.AttributeError)(nil)
			assert.ErrorAs(t, err, &attribute, "cost %q", cost)
		}
		for _, cost := range []string{strconv.FormatInt(limit.MostCost()+1, 10), "9223372036854775807"} {
			r := b.reserve(time.Hour, "points", cost)
			assert.Equal(t, throttle.Never, r.Outcome, "cost %q", cost)
		}
		assert.Empty(t, b.contents())
		assert.Equal(t, throttle.Granted, b.reserve(0, "points", "5").Outcome)
	})
}

// A rate of 0 divides by it, or lets everything through.
func TestBugRateOfNothing(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Rate.Count, limit.Slots = 0, 0
		_, err := throttle.New(nil, &policy.Config{Policies: []policy.Policy{{Name: "api", Limits: []policy.Limit{limit}}}})
		assert.Error(t, err)
	})
}

// A changed limit that keeps old debt as it stands locks everybody out for hours;
// one that starts anew refills for free.
func TestBugChangedLimit(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Rate.Period = 100 * time.Hour
		b := newTestLimiter(t, limit)
		spend(b)
		faster := limit
		faster.Rate.Period = time.Second
		b.change(faster)
		r := b.reserve(0)
		assert.Equal(t, throttle.Denied, r.Outcome, "a free refill")
		b.clock.Advance(2 * time.Second)
		assert.Equal(t, throttle.Granted, b.reserve(0).Outcome, "old debt: retry after %s", r.RetryAfter())
	}, "concurrency") // has no rate; its slots are running tasks
}

// One retry time for everybody makes all of them come back at once.
func TestBugOneRetryTimeForAll(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		b := newTestLimiter(t, limit)
		spend(b)
		slots := map[time.Time]int{}
		for range 20 {
			r := b.reserve(time.Hour)
			require.Equal(t, throttle.Granted, r.Outcome)
			slots[r.At]++
		}
		for at, tasks := range slots {
			assert.LessOrEqual(t, tasks, 1, "at %s", at)
		}
	}, "sliding_log", "concurrency") // tokens of a log come back when they were taken; slots when tasks end
}

// Failing open on a server that hangs: the limit is gone when it is needed most.
func TestBugFailsOpenOnAHang(t *testing.T) {
	t.Parallel()
	deaf, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer deaf.Close()
	client := redis.NewClient(&redis.Options{
		Addr: deaf.Addr().String(), ReadTimeout: 20 * time.Millisecond, DialTimeout: 20 * time.Millisecond, MaxRetries: -1,
	})
	defer client.Close()
	limiter := newLimiter(t, client, "api", fivePerMinute()["token_bucket"])
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	r, err := limiter.Reserve(ctx, request(0))
	require.Error(t, err)
	assert.Nil(t, r)
	assert.NoError(t, ctx.Err(), "it ended by the client's own time limits")
}

// The same task asking again is refused its own slot when all are taken.
func TestBugReacquireRefused(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, policy.Limit{Name: "l", Algorithm: policy.Concurrency, Slots: 1})
	again := request(0)
	again.TaskID = "42"
	for range 2 {
		r, err := b.limiter.Reserve(t.Context(), again)
		require.NoError(t, err)
		assert.Equal(t, throttle.Granted, r.Outcome)
	}
	assert.Equal(t, throttle.Denied, b.reserve(0).Outcome, "and holds one slot, not two")
}
