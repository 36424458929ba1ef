package throttle_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// noon is a whole minute, so that windows of whole seconds begin at it.
var noon = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// testLimiter is a limiter for one policy named "api" on a server whose clock the test
// moves.
type testLimiter struct {
	t       *testing.T
	clock   *throttletest.Clock
	client  *redis.Client
	limiter *throttle.Limiter
	byKey   bool // the scripts read the time from clockKey
}

const clockKey = "clock"

func newTestLimiter(t *testing.T, limits ...policy.Limit) *testLimiter {
	t.Helper()
	server, clock := throttletest.EmbeddedAt(t, noon)
	return &testLimiter{t: t, clock: clock, client: server.Client(), limiter: newLimiter(t, server.Client(), "api", limits...)}
}

// empty empties a server for another story; law 12 says what must not be there.
func empty(t *testing.T, client *redis.Client) {
	t.Helper()
	allExpire(t, client)
	require.NoError(t, client.FlushDB(t.Context()).Err())
}

// allExpire asserts law 12: no key is kept for good.
func allExpire(t *testing.T, client *redis.Client, about ...any) {
	t.Helper()
	keys, err := throttletest.LastingKeys(t.Context(), client)
	require.NoError(t, err)
	require.Empty(t, keys, about...)
}

// newTestLimiterOn is newTestLimiter on a server that has another clock of its own. It
// is emptied first, and nothing expires there.
func newTestLimiterOn(t *testing.T, server *throttletest.Server, limits ...policy.Limit) *testLimiter {
	t.Helper()
	b := &testLimiter{t: t, clock: throttletest.NewClock(noon), client: server.Client(), byKey: true}
	empty(t, b.client)
	b.change(limits...)
	b.at(0)
	return b
}

// makeLimiter makes a testLimiter on one of the servers, and empties that.
type makeLimiter func(limits ...policy.Limit) *testLimiter

// moreStories is how many times as many random stories are told as in make test.
var moreStories uint64 = 1

// eachStory tells random stories: all of them to a real Redis, and a few to the embedded
// one, where they take many times as long, and where keys expire by the test's clock.
func eachStory(t *testing.T, stories, embedded uint64, tell func(t *testing.T, make makeLimiter, seed uint64)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		for seed := range embedded {
			tell(t, func(limits ...policy.Limit) *testLimiter { return newTestLimiter(t, limits...) }, seed)
		}
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := throttletest.Redis(t)
		for seed := range stories * moreStories {
			tell(t, func(limits ...policy.Limit) *testLimiter { return newTestLimiterOn(t, server, limits...) }, seed)
		}
	})
}

func newLimiter(t *testing.T, client redis.UniversalClient, name string, limits ...policy.Limit) *throttle.Limiter {
	t.Helper()
	limiter, err := throttle.New(client, &policy.Config{
		Policies: []policy.Policy{{Name: name, Limits: limits}},
	})
	require.NoError(t, err)
	return limiter
}

// change gives the policy other limits, as a new policies file does.
func (b *testLimiter) change(limits ...policy.Limit) {
	b.t.Helper()
	b.remake(policy.Policy{Limits: limits})
}

// update gives the limiter itself other limits.
func (b *testLimiter) update(limits ...policy.Limit) {
	b.t.Helper()
	require.NoError(b.t, b.limiter.Update(&policy.Config{Policies: []policy.Policy{{Name: "api", Limits: limits}}}))
	throttle.RunByClockKey(b.limiter, clockKey)
}

func (b *testLimiter) remake(p policy.Policy) {
	b.t.Helper()
	p.Name = "api"
	limiter, err := throttle.New(b.client, &policy.Config{Policies: []policy.Policy{p}})
	require.NoError(b.t, err)
	if b.byKey {
		throttle.RunByClockKey(limiter, clockKey)
	}
	b.limiter = limiter
}

// at sets the clock to some time after noon.
func (b *testLimiter) at(afterNoon time.Duration) { b.set(noon.Add(afterNoon)) }

func (b *testLimiter) set(now time.Time) {
	b.t.Helper()
	b.clock.Set(now)
	if b.byKey {
		require.NoError(b.t, b.client.Set(b.t.Context(), clockKey, now.UnixMicro(), 0).Err())
	}
}

func (b *testLimiter) reserve(wait time.Duration, attributes ...string) *throttle.Reservation {
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

// contents returns everything the server holds, and for how long by the test's clock; but
// for the marks of calls that may be repeated, which tell nothing of limits.
func (b *testLimiter) contents() map[string]string {
	b.t.Helper()
	keys, err := b.client.Keys(b.t.Context(), "*").Result()
	require.NoError(b.t, err)
	contents := map[string]string{}
	for _, key := range keys {
		switch {
		case strings.Contains(key, "/once:"):
		case !b.byKey:
			contents[key] = b.client.Dump(b.t.Context(), key).Val() + b.client.PTTL(b.t.Context(), key).Val().String()
		case key != clockKey:
			contents[key] = b.client.Dump(b.t.Context(), key).Val()
		}
	}
	return contents
}

func bucket(name string, count int64, period time.Duration, burst int64) policy.Limit {
	return policy.Limit{
		Name: name, Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: count, Period: period}, Burst: burst,
	}
}

func window(name string, count int64, period time.Duration, anchor policy.Anchor) policy.Limit {
	return policy.Limit{
		Name: name, Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: count, Period: period}, Anchor: anchor,
	}
}

// Attributes that no limit of the policy names are nobody's business, and keys
// of any shape keep apart.
func TestKeysKeepApart(t *testing.T) {
	t.Parallel()
	limit := window("w", 1, time.Minute, policy.AnchorClock)
	limit.Per = "user"
	b := newTestLimiter(t, limit)
	long := string(make([]byte, 10_000))
	for _, user := range []string{"a", "a}", "{a}", "a:b", "a\nb", "w", "é", long, long + "x", " "} {
		assert.Equal(t, throttle.Granted, b.reserve(0, "user", user).Outcome, "%.20q", user)
		assert.Equal(t, throttle.Denied, b.reserve(0, "user", user).Outcome, "%.20q", user)
	}
}

func TestFreezeClosesThePolicyForAll(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("b", 10, time.Second, 10))
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

// Law 1 for those who can not wait, and batching: however many ask at once, as
// many as fit are granted; the others get the same answer one by one would get.
func TestConcurrentCallers(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		name := throttletest.UniqueName(t)
		limits := []policy.Limit{
			bucket("b", 50, time.Hour, 50), window("w", 60, 24*time.Hour, policy.AnchorFirst),
		}
		limiters := []*throttle.Limiter{
			newLimiter(t, server.Client(), name, limits...), newLimiter(t, server.Client(), name, limits...),
		}
		var granted atomic.Int64
		var all sync.WaitGroup
		for i := range 400 {
			all.Go(func() {
				r, err := limiters[i%2].Reserve(t.Context(), throttle.Request{Policy: name})
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
		name := throttletest.UniqueName(t)
		limiter := newLimiter(t, server.Client(), name, window("w", 1000, time.Hour, policy.AnchorFirst))
		var granted atomic.Int64
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if r, err := limiter.Reserve(ctx, throttle.Request{Policy: name}); err == nil {
					granted.Add(1)
					assert.Equal(t, throttle.Granted, r.Outcome)
				} else {
					assert.ErrorIs(t, err, context.Canceled)
				}
			})
		}
		all.Wait()
		assert.Eventually(t, func() bool {
			d, err := limiter.Peek(t.Context(), throttle.Request{Policy: name})
			return assert.NoError(t, err) && 1000-d.Limits[0].Remaining == granted.Load()
		}, throttle.Patience, time.Millisecond)
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
