package throttle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// noon is a whole minute, so that windows of whole seconds begin at it.
var noon = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// bench is a limiter for one policy named "api" on an embedded server whose
// clock the test moves.
type bench struct {
	t       *testing.T
	clock   *throttletest.Clock
	client  *redis.Client
	limiter *throttle.Limiter
}

func newBench(t *testing.T, limits ...throttle.Limit) *bench {
	t.Helper()
	server, clock := throttletest.EmbeddedAt(t, noon)
	return &bench{t, clock, server.Client(), newLimiter(t, server.Client(), "api", limits...)}
}

func newLimiter(t *testing.T, client redis.UniversalClient, policy string, limits ...throttle.Limit) *throttle.Limiter {
	t.Helper()
	limiter, err := throttle.New(client, &throttle.Config{
		Policies: []throttle.Policy{{Name: policy, Limits: limits}},
	})
	require.NoError(t, err)
	return limiter
}

// at sets the clock to some time after noon.
func (b *bench) at(afterNoon time.Duration) { b.clock.Set(noon.Add(afterNoon)) }

func (b *bench) reserve(wait time.Duration, attributes ...string) *throttle.Reservation {
	b.t.Helper()
	r, err := b.limiter.Reserve(b.t.Context(), request(wait, attributes...))
	require.NoError(b.t, err)
	return r
}

// request is for the policy "api"; attributes are names and values in turn.
func request(wait time.Duration, attributes ...string) throttle.Request {
	r := throttle.Request{Policy: "api", MaxWait: wait, Attributes: map[string]string{}}
	for i := 0; i < len(attributes); i += 2 {
		r.Attributes[attributes[i]] = attributes[i+1]
	}
	return r
}

// contents returns everything the server holds.
func (b *bench) contents() map[string]string {
	b.t.Helper()
	keys, err := b.client.Keys(b.t.Context(), "*").Result()
	require.NoError(b.t, err)
	contents := map[string]string{}
	for _, key := range keys {
		contents[key] = b.client.Dump(b.t.Context(), key).Val() + b.client.PTTL(b.t.Context(), key).Val().String()
	}
	return contents
}

func bucket(name string, count int64, period time.Duration, burst int64) throttle.Limit {
	return throttle.Limit{
		Name: name, Algorithm: throttle.TokenBucket, Rate: throttle.Rate{Count: count, Period: period}, Burst: burst,
	}
}

func window(name string, count int64, period time.Duration, anchor throttle.Anchor) throttle.Limit {
	return throttle.Limit{
		Name: name, Algorithm: throttle.FixedWindow, Rate: throttle.Rate{Count: count, Period: period}, Anchor: anchor,
	}
}

// The sequence that fixed-window libraries agree on: two per three seconds.
func TestS4FixedWindowSequence(t *testing.T) {
	t.Parallel()
	for _, anchor := range []throttle.Anchor{throttle.AnchorClock, throttle.AnchorFirst} {
		t.Run(string(anchor), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, window("w", 2, 3*time.Second, anchor))
			for i, step := range []struct {
				at        time.Duration
				granted   bool
				remaining int64
				reset     time.Duration
			}{
				{0, true, 1, 3 * time.Second},
				{0, true, 0, 3 * time.Second},
				{0, false, 0, 3 * time.Second},
				{3 * time.Second, true, 1, 3 * time.Second},
				{3 * time.Second, true, 0, 3 * time.Second},
				{5 * time.Second, false, 0, time.Second},
			} {
				b.at(step.at)
				r := b.reserve(0)
				assert.Equal(t, step.granted, r.Outcome == throttle.Granted, "step %d", i)
				assert.Equal(t, throttle.LimitStatus{
					Name: "w", Cost: 1, Limit: 2, Remaining: step.remaining, ResetAfter: step.reset,
				}, r.Limits[0], "step %d", i)
			}
		})
	}
}

func TestFixedWindowAnchors(t *testing.T) {
	t.Parallel()
	for anchor, secondWindow := range map[throttle.Anchor]time.Duration{
		throttle.AnchorClock: 10 * time.Second,
		throttle.AnchorFirst: 17 * time.Second,
	} {
		t.Run(string(anchor), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, window("w", 1, 10*time.Second, anchor))
			b.at(7 * time.Second)
			require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
			assert.Equal(t, noon.Add(secondWindow), b.reserve(0).At.UTC())
		})
	}
}

// The vectors by which GCRA implementations are compared: limit 5, one a second.
// A retry of 0 stands for granted.
func TestTokenBucketVectors(t *testing.T) {
	t.Parallel()
	limit := bucket("b", 1, time.Second, 5)
	limit.Cost = "cost"
	b := newBench(t, limit)
	for i, step := range []struct {
		at        float64
		cost      int
		remaining int64
		reset     float64
		retry     float64
		never     bool
	}{
		{0, 6, 0, 0, 0, true},
		{0, 1, 4, 1, 0, false},
		{0, 1, 3, 2, 0, false},
		{0, 1, 2, 3, 0, false},
		{0, 1, 1, 4, 0, false},
		{0, 1, 0, 5, 0, false},
		{0, 1, 0, 5, 1, false},
		{3, 1, 2, 3, 0, false},
		{3.1, 1, 1, 3.9, 0, false},
		{4, 1, 1, 4, 0, false},
		{8, 1, 4, 1, 0, false},
		{9.5, 1, 4, 1, 0, false},
		{9.5, 2, 2, 3, 0, false},
		{9.5, 5, 2, 3, 3, false},
		{15, 6, 0, 0, 0, true},
	} {
		b.at(time.Duration(step.at * float64(time.Second)))
		r := b.reserve(0, "cost", strconv.Itoa(step.cost))
		if step.never {
			assert.Equal(t, throttle.Never, r.Outcome, "step %d", i)
			continue
		}
		assert.Equal(t, step.retry == 0, r.Outcome == throttle.Granted, "step %d", i)
		assert.InDelta(t, step.retry, r.RetryAfter().Seconds(), 1e-9, "step %d", i)
		assert.Equal(t, step.remaining, r.Limits[0].Remaining, "step %d", i)
		assert.InDelta(t, step.reset, r.Limits[0].ResetAfter.Seconds(), 1e-9, "step %d", i)
	}
}

// A third of a second is no whole number of microseconds; nothing of it may be
// lost or gained over a thousand tokens.
func TestTokenBucketIsExact(t *testing.T) {
	t.Parallel()
	b := newBench(t, bucket("b", 3, time.Second, 1))
	for i := range 1000 {
		r := b.reserve(time.Hour)
		require.Equal(t, throttle.Granted, r.Outcome)
		now := r.At.Sub(noon)
		exact := time.Duration(i) * time.Second / 3
		require.GreaterOrEqual(t, now, exact.Truncate(time.Microsecond))
		require.LessOrEqual(t, now, exact+time.Duration(i+1)*time.Microsecond)
	}
}

// Law 3: with nobody else about, a denied request passes after exactly its
// RetryAfter, and not a microsecond before.
func TestPatienceIsRewarded(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 3))
		limits := randomLimits(random)
		b := newBench(t, limits...)
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
	}
}

func randomLimits(random *rand.Rand) []throttle.Limit {
	limits := make([]throttle.Limit, 1+random.IntN(3))
	for i := range limits {
		name, count := fmt.Sprintf("l%d", i), 1+random.Int64N(9)
		period := time.Duration(1+random.Int64N(3_000_000)) * time.Microsecond
		switch random.IntN(3) {
		case 0:
			limits[i] = bucket(name, count, period, 1+random.Int64N(9))
		case 1:
			limits[i] = window(name, count, period, throttle.AnchorClock)
		case 2:
			limits[i] = window(name, count, period, throttle.AnchorFirst)
		}
		limits[i].Cost = "cost"
	}
	return limits
}

func smallest(limits []throttle.Limit) int64 {
	least := limits[0].Capacity()
	for i := range limits {
		least = min(least, limits[i].Capacity())
	}
	return least
}

// Law 2: what does not pass changes nothing.
func TestDenialsChangeNothing(t *testing.T) {
	t.Parallel()
	wide, narrow := bucket("wide", 100, time.Second, 100), window("narrow", 1, time.Minute, throttle.AnchorClock)
	wide.Cost, narrow.Per = "cost", "user"
	b := newBench(t, wide, narrow)
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
	never := (*throttle.NeverError)(nil)
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
		bad := (*throttle.AttributeError)(nil)
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

// Attributes that no limit of the policy names are nobody's business, and keys
// of any shape keep apart.
func TestKeysKeepApart(t *testing.T) {
	t.Parallel()
	limit := window("w", 1, time.Minute, throttle.AnchorClock)
	limit.Per = "user"
	b := newBench(t, limit)
	long := string(make([]byte, 10_000))
	for _, user := range []string{"a", "a}", "{a}", "a:b", "a\nb", "w", "é", long, long + "x", " "} {
		assert.Equal(t, throttle.Granted, b.reserve(0, "user", user).Outcome, "%.20q", user)
		assert.Equal(t, throttle.Denied, b.reserve(0, "user", user).Outcome, "%.20q", user)
	}
}

// A waiting request gets the first instant at which all limits pass, and takes
// from all of them there.
func TestWaitingTakesTheFirstInstantOfAll(t *testing.T) {
	t.Parallel()
	b := newBench(t, bucket("fast", 1, time.Second, 1), window("slow", 2, 10*time.Second, throttle.AnchorClock))
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

// Slots in a window ahead are spread over it: no herd when it opens.
func TestWindowsAheadAreSpread(t *testing.T) {
	t.Parallel()
	b := newBench(t, window("w", 4, 4*time.Second, throttle.AnchorClock))
	for range 4 {
		require.Equal(t, noon, b.reserve(0).At.UTC())
	}
	for i := range 8 {
		assert.Equal(t, noon.Add(time.Duration(4+i)*time.Second), b.reserve(time.Minute).At.UTC())
	}
	// The reach of a window limit is bounded, whatever the caller would wait.
	for range 64 * 4 {
		b.reserve(time.Hour)
	}
	assert.Equal(t, throttle.Denied, b.reserve(time.Hour).Outcome)
}

func TestCancelGivesBackItsOwnOnce(t *testing.T) {
	t.Parallel()
	third := bucket("b", 3, time.Second, 3)
	third.Cost = "cost"
	b := newBench(t, third, window("w", 50, time.Minute, throttle.AnchorFirst))

	before := b.reserve(0)
	r := b.reserve(0, "cost", "2")
	require.Equal(t, int64(0), r.Limits[0].Remaining)
	require.NoError(t, r.Cancel(t.Context()))
	require.NoError(t, r.Cancel(t.Context()))

	d, err := b.limiter.Peek(t.Context(), request(0))
	require.NoError(t, err)
	assert.Equal(t, before.Limits[0].Remaining, d.Limits[0].Remaining)
	assert.Equal(t, before.Limits[0].ResetAfter, d.Limits[0].ResetAfter)
	assert.Equal(t, before.Limits[1].Remaining, d.Limits[1].Remaining)

	// A slot ahead comes back too, and those behind it do not move.
	reservations := make([]*throttle.Reservation, 4)
	for i := range reservations {
		reservations[i] = b.reserve(time.Minute)
		require.Equal(t, throttle.Granted, reservations[i].Outcome)
	}
	require.NoError(t, reservations[2].Cancel(t.Context()))
	assert.LessOrEqual(t, b.reserve(time.Minute).At, reservations[3].At)
}

// Law 1 by each algorithm's definition, over the slots that were granted and not
// given back, in whatever order that was.
func TestNeverOverWhateverIsCancelled(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit func(count, burst int64) throttle.Limit
		most  func(count, burst int64) int64
		count func(starts []time.Time, count int64) int
	}{
		"token bucket": {
			func(count, burst int64) throttle.Limit { return bucket("l", count, time.Second, burst) },
			func(_, burst int64) int64 { return burst },
			func(starts []time.Time, count int64) int { return throttletest.MaxBurst(starts, count, time.Second) },
		},
		"interval bucket": {
			func(count, burst int64) throttle.Limit {
				l := bucket("l", count, time.Second, burst)
				l.Refill = throttle.RefillInterval
				return l
			},
			func(count, burst int64) int64 { return burst + count },
			func(starts []time.Time, _ int64) int { return throttletest.MaxInAnyInterval(starts, time.Second) },
		},
		"fixed window by the clock": {
			func(count, _ int64) throttle.Limit { return window("l", count, time.Second, throttle.AnchorClock) },
			func(count, _ int64) int64 { return count },
			func(starts []time.Time, _ int64) int { return throttletest.MaxPerWindow(starts, time.Second, noon) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(40) {
				random := rand.New(rand.NewPCG(seed, 7))
				count, burst := 1+random.Int64N(7), 1+random.Int64N(4)
				starts := startsOf(t, random, test.limit(count, burst))
				require.LessOrEqual(t, int64(test.count(starts, count)), test.most(count, burst), "seed %d", seed)
			}
		})
	}
}

// startsOf lets requests come and go at random, and returns the starts that came
// of them.
func startsOf(t *testing.T, random *rand.Rand, limit throttle.Limit) (starts []time.Time) {
	t.Helper()
	b := newBench(t, limit)
	var held []*throttle.Reservation
	now := time.Duration(0)
	for range 60 {
		if random.IntN(3) > 0 {
			if r := b.reserve(time.Minute); r.Outcome == throttle.Granted {
				held = append(held, r)
			}
		} else if len(held) > 0 {
			i := random.IntN(len(held))
			require.NoError(t, held[i].Cancel(t.Context()))
			held = append(held[:i], held[i+1:]...)
		}
		if random.IntN(4) == 0 {
			now += time.Duration(random.Int64N(int64(time.Second))).Truncate(time.Microsecond)
			b.at(now)
			held = slices.DeleteFunc(held, func(r *throttle.Reservation) bool {
				due := !r.At.After(noon.Add(now))
				if due {
					starts = append(starts, r.At)
				}
				return due
			})
		}
	}
	for _, r := range held {
		starts = append(starts, r.At)
	}
	return starts
}

func TestCancelledInAnyOrderTheBucketIsFull(t *testing.T) {
	t.Parallel()
	b := newBench(t, bucket("b", 3, time.Second, 2))
	var held []*throttle.Reservation
	for range 9 {
		held = append(held, b.reserve(time.Minute))
	}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(len(held)) {
		require.NoError(t, held[i].Cancel(t.Context()))
	}
	assert.Empty(t, b.contents())
}

func TestFreezeClosesThePolicyForAll(t *testing.T) {
	t.Parallel()
	b := newBench(t, bucket("b", 10, time.Second, 10))
	other := newLimiter(t, b.client, "api", bucket("b", 10, time.Second, 10))
	require.NoError(t, other.Freeze(t.Context(), "api", 5*time.Second))
	require.NoError(t, b.limiter.Freeze(t.Context(), "api", time.Second), "never shortens")

	r := b.reserve(0)
	assert.Equal(t, throttle.Denied, r.Outcome)
	assert.Equal(t, throttle.HeldByFreeze, r.HeldBy)
	assert.Equal(t, 5*time.Second, r.RetryAfter())
	assert.Equal(t, noon.Add(5*time.Second), b.reserve(10*time.Second).At.UTC())
	b.at(5 * time.Second)
	assert.Equal(t, throttle.Granted, b.reserve(0).Outcome)
	assert.ErrorIs(t, b.limiter.Freeze(t.Context(), "other", time.Second), throttle.ErrUnknownPolicy)
}

// Parked tasks get instants of their own, one step apart, not a common one.
func TestParkGivesEachItsOwnTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, bucket("b", 2, time.Second, 1))
	b.reserve(0)
	for i := range 5 {
		r := b.reserve(0)
		require.Equal(t, throttle.Denied, r.Outcome)
		away, err := b.limiter.Park(t.Context(), r)
		require.NoError(t, err)
		want := 500*time.Millisecond + time.Duration(i)*500*time.Millisecond
		assert.InDelta(t, want, away, float64(10*time.Microsecond), "task %d", i)
	}
}

// Everything expires, and not before it stops mattering.
func TestEveryKeyExpires(t *testing.T) {
	t.Parallel()
	b := newBench(t, bucket("b", 7, time.Second, 3), window("w", 3, time.Minute, throttle.AnchorFirst))
	for range 3 {
		require.Equal(t, throttle.Granted, b.reserve(time.Minute).Outcome)
	}
	r := b.reserve(0)
	_, err := b.limiter.Park(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, b.limiter.Freeze(t.Context(), "api", time.Second))
	reset := map[string]time.Duration{
		"rm:{api}:b": r.Limits[0].ResetAfter, "rm:{api}:w": r.Limits[1].ResetAfter, "rm:{api}/freeze": time.Second,
	}
	keys, err := b.client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Len(t, keys, 4)
	for _, key := range keys {
		ttl := b.client.PTTL(t.Context(), key).Val()
		assert.Positive(t, ttl, key)
		assert.GreaterOrEqual(t, ttl, reset[key], key)
		assert.LessOrEqual(t, ttl, 2*time.Minute, key)
	}
	b.clock.Advance(2 * time.Minute)
	assert.Empty(t, b.contents())
}

// A key of ours that holds something else is somebody else's: it is an error, and
// it and the other limits stay as they are.
func TestForeignKeyIsLeftAlone(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		policy, client := throttletest.UniqueName(t), server.Client()
		limiter := newLimiter(t, client, policy,
			bucket("a", 1, time.Minute, 1), bucket("b", 1, time.Minute, 1))
		foreign := "rm:{" + policy + "}:b"
		require.NoError(t, client.LPush(t.Context(), foreign, "mine").Err())
		_, err := limiter.Reserve(t.Context(), throttle.Request{Policy: policy})
		require.ErrorContains(t, err, foreign)
		assert.Equal(t, int64(0), client.Exists(t.Context(), "rm:{"+policy+"}:a").Val())
		assert.Equal(t, "list", client.Type(t.Context(), foreign).Val())
	})
}

// Law 1 for those who can not wait, and batching: however many ask at once, as
// many as fit are granted; the others get the same answer one by one would get.
func TestConcurrentCallers(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		policy := throttletest.UniqueName(t)
		limits := []throttle.Limit{
			bucket("b", 50, time.Hour, 50), window("w", 60, 24*time.Hour, throttle.AnchorFirst),
		}
		limiters := []*throttle.Limiter{
			newLimiter(t, server.Client(), policy, limits...), newLimiter(t, server.Client(), policy, limits...),
		}
		var granted atomic.Int64
		var all sync.WaitGroup
		for i := range 400 {
			all.Go(func() {
				r, err := limiters[i%2].Reserve(t.Context(), throttle.Request{Policy: policy})
				if assert.NoError(t, err) && r.Outcome == throttle.Granted {
					granted.Add(1)
				}
			})
		}
		all.Wait()
		assert.Equal(t, int64(50), granted.Load())
	})
}

// A caller that leaves while its request is under way gives back what it was
// granted.
func TestCallerThatLeavesTakesNothing(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		policy := throttletest.UniqueName(t)
		limiter := newLimiter(t, server.Client(), policy, window("w", 1000, time.Hour, throttle.AnchorFirst))
		var granted atomic.Int64
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if r, err := limiter.Reserve(ctx, throttle.Request{Policy: policy}); err == nil {
					granted.Add(1)
					assert.Equal(t, throttle.Granted, r.Outcome)
				} else {
					assert.ErrorIs(t, err, context.Canceled)
				}
			})
		}
		all.Wait()
		assert.Eventually(t, func() bool {
			d, err := limiter.Peek(t.Context(), throttle.Request{Policy: policy})
			return assert.NoError(t, err) && 1000-d.Limits[0].Remaining == granted.Load()
		}, 5*time.Second, 5*time.Millisecond)
	})
}

// Scripts come back by themselves after a SCRIPT FLUSH.
func TestScriptFlush(t *testing.T) {
	t.Parallel()
	server := throttletest.Embedded(t)
	limiter := newLimiter(t, server.Client(), "api", bucket("b", 10, time.Second, 10))
	for range 3 {
		r, err := limiter.Reserve(t.Context(), request(0))
		require.NoError(t, err)
		assert.Equal(t, throttle.Granted, r.Outcome)
		require.NoError(t, server.Client().ScriptFlush(t.Context()).Err())
	}
}

func isSortedSet(l throttle.Limit) bool {
	return l.Algorithm == throttle.SlidingLog || l.Algorithm == throttle.Concurrency
}

// A limit that changes its algorithm meets the state that the other one left: an
// error that says so, and nothing is changed.
func TestStateOfAnotherAlgorithmIsLeftAlone(t *testing.T) {
	t.Parallel()
	interval := bucket("l", 5, time.Minute, 5)
	interval.Refill = throttle.RefillInterval
	limits := []throttle.Limit{
		bucket("l", 5, time.Minute, 5), interval, window("l", 5, time.Minute, throttle.AnchorFirst),
		{Name: "l", Algorithm: throttle.SlidingLog, Rate: throttle.Rate{Count: 5, Period: time.Minute}},
		{Name: "l", Algorithm: throttle.SlidingWindow, Rate: throttle.Rate{Count: 5, Period: time.Minute}},
		{Name: "l", Algorithm: throttle.Concurrency, Slots: 5},
	}
	for i, left := range limits {
		for j, met := range limits {
			if i == j || isSortedSet(left) && isSortedSet(met) { // those two can not be told apart
				continue
			}
			b := newBench(t, left)
			require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
			before := b.contents()
			limiter := newLimiter(t, b.client, "api", met)
			_, err := limiter.Reserve(t.Context(), request(0))
			require.ErrorContains(t, err, "rm:{api}:l", "%d %d", i, j)
			require.ErrorContains(t, err, "RAMPMETER", "%s meets %s", met.Algorithm, left.Algorithm)
			_, err = limiter.Peek(t.Context(), request(0))
			require.ErrorContains(t, err, "RAMPMETER", "%s peeks at %s", met.Algorithm, left.Algorithm)
			require.Equal(t, before, b.contents())
		}
	}
}
