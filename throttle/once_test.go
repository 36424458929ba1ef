package throttle_test

import (
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

// proxied is a limiter that reaches its server through a proxy, which loses answers.
type proxied struct {
	*testLimiter
	proxy *throttletest.Proxy
}

func newProxied(t *testing.T, server *throttletest.Server, policy policy.Policy) proxied {
	t.Helper()
	proxy := throttletest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 1})
	t.Cleanup(func() { _ = client.Close() })
	b := proxied{&testLimiter{t: t, client: client}, proxy}
	b.remake(policy)
	return b
}

// starts is how many tasks get a token or a slot now; but for those called that, of whom
// each is another task.
func (b proxied) starts(name string) (granted []*throttle.Reservation) {
	b.t.Helper()
	for i := range 50 {
		ask := request(0)
		ask.TaskID = name + strconv.Itoa(i)
		r, err := b.limiter.Reserve(b.t.Context(), ask)
		require.NoError(b.t, err)
		if r.Outcome != throttle.Granted {
			break
		}
		granted = append(granted, r)
	}
	return granted
}

// losing does something, the answer to which is lost on its way for the first time.
func (b proxied) losing(operation string, do func() error) {
	b.t.Helper()
	b.proxy.LoseReply(operation)
	require.NoError(b.t, do())
	assert.True(b.t, b.proxy.Lost(), "an answer was lost")
}

// Law 14: the client asks again by itself when an answer is lost, and what is given back
// comes back once.
func TestLostAnswersGiveBackOnce(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		if limit.Rate = (policy.Rate{Count: 10, Period: 24 * time.Hour}); limit.Algorithm == policy.Concurrency {
			limit.Rate, limit.Slots, limit.Lease = policy.Rate{}, 10, time.Hour
		}
		if limit.Burst > 0 {
			limit.Burst = 10
		}
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			b := newProxied(t, server, policy.Policy{Limits: []policy.Limit{limit}})
			first := b.starts("first")
			require.Len(t, first, int(limit.Capacity()))
			last := first[len(first)-1]
			b.losing("settle", func() error { return last.Cancel(t.Context()) })
			assert.Len(t, b.starts("second"), 1)
			require.NoError(t, last.Cancel(t.Context()))
			assert.Empty(t, b.starts("third"))
		})
	})
}

func TestLostAnswersAdjustOnce(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost, limit.Rate = "cost", policy.Rate{Count: 20, Period: 24 * time.Hour}
		if limit.Burst > 0 {
			limit.Burst = 20
		}
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			b := newProxied(t, server, policy.Policy{Limits: []policy.Limit{limit}})
			r := b.reserve(0, "cost", "9")
			adjust := func(cost string) func() error {
				return func() error { return r.Adjust(t.Context(), map[string]string{"cost": cost}) }
			}
			b.losing("settle", adjust("6"))
			assert.EqualValues(t, 13, b.reserve(0).Limits[0].Remaining)
			b.losing("settle", adjust("8"))
			assert.EqualValues(t, 10, b.reserve(0).Limits[0].Remaining)
		})
	}, "concurrency", "spacing") // a running task holds what it holds; and see TestSpacingAdjustsOnce
}

// An adjustment that ended in an error may have been made. Who makes it again makes it once.
func TestAdjustAgainAfterAnError(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limit := window("w", 20, 24*time.Hour, policy.AnchorClock)
		limit.Cost = "cost"
		b := newProxied(t, server, policy.Policy{Limits: []policy.Limit{limit}})
		r := b.reserve(0, "cost", "9")
		actual := map[string]string{"cost": "4"}
		for range 4 { // as often as a call is made
			b.proxy.LoseReply("settle")
			_ = r.Adjust(t.Context(), actual)
		}
		require.NoError(t, r.Adjust(t.Context(), actual))
		assert.EqualValues(t, 15, b.reserve(0).Limits[0].Remaining)
	})
}

// The flight of a call ends once, so that it does not end another's.
func TestLostAnswersEndAFlightOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newProxied(t, server, policy.Policy{
			Limits: []policy.Limit{window("w", 100, 24*time.Hour, policy.AnchorClock)}, Upstream: &policy.Upstream{},
		})
		hear := func(r *throttle.Reservation, remaining int64) func() error {
			return func() error {
				_, err := r.Reconcile(t.Context(), throttle.Observation{Quotas: map[string]throttle.Reading{
					"w": {Limit: 50, Remaining: remaining, Reset: time.Hour, Window: time.Hour},
				}})
				return err
			}
		}
		first := b.reserve(0)
		require.NoError(t, hear(first, 10)())
		calls := b.starts("call")
		require.Len(t, calls, 10, "as many as are left")
		b.losing("reconcile", hear(calls[0], 9))
		assert.Empty(t, b.starts("more"), "nine are left, and nine are in flight")
	})
}

// The answer to an attempt goes with what it took, in one call.
func TestCancelTakesTheAnswerToo(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newProxied(t, server, policy.Policy{Limits: []policy.Limit{bucket("l", 1, time.Hour, 10)}})
		ask := request(0)
		ask.Attempt = "a"
		first, err := b.limiter.Reserve(t.Context(), ask)
		require.NoError(t, err)
		b.losing("settle", func() error { return first.Cancel(t.Context()) })
		assert.Zero(t, b.client.Exists(t.Context(), "rm:{api}/attempt:a").Val())
		again, err := b.limiter.Reserve(t.Context(), ask)
		require.NoError(t, err)
		assert.EqualValues(t, 9, again.Limits[0].Remaining)
	})
}
