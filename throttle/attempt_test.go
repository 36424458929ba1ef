package throttle_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func (b *testLimiter) attempt(name string, wait time.Duration) *throttle.Reservation {
	b.t.Helper()
	ask := request(wait)
	ask.Attempt, ask.TaskID = name, "task of "+name
	r, err := b.limiter.Reserve(b.t.Context(), ask)
	require.NoError(b.t, err)
	return r
}

// kept is how long after its slot an attempt hears of it again.
const kept = 5 * time.Second

// Asking again is not paid twice, as long as a call may take.
func TestAttemptIsPaidOnce(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		b := newTestLimiter(t, limit)
		first := b.attempt("a", 0)
		require.Equal(t, throttle.Granted, first.Outcome)
		b.at(kept - time.Millisecond)
		again := b.attempt("a", 0)
		require.Equal(t, throttle.Granted, again.Outcome)
		assert.Equal(t, first.At, again.At)
		assert.EqualValues(t, 4, again.Limits[0].Remaining)
		require.Equal(t, throttle.Granted, b.attempt("b", 0).Outcome)

		b.at(kept + time.Millisecond)
		later := b.attempt("a", 0)
		require.Equal(t, throttle.Granted, later.Outcome)
		assert.Equal(t, noon.Add(kept+time.Millisecond), later.At.UTC())
	}, "spacing") // has nothing left for a second one
}

func TestAttemptKeepsItsSlotAhead(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		b := newTestLimiter(t, limit)
		spend(b)
		first := b.attempt("a", time.Hour)
		require.Equal(t, throttle.Granted, first.Outcome)
		b.at(time.Second)
		again := b.attempt("a", time.Hour)
		assert.Equal(t, first.At, again.At)
		assert.True(t, b.attempt("b", time.Hour).At.After(first.At) || limit.Algorithm == policy.SlidingLog)

		// What is given back is not given again, and only once.
		require.NoError(t, again.Cancel(t.Context()))
		require.NoError(t, first.Cancel(t.Context()))
		assert.Equal(t, throttle.Granted, b.attempt("c", time.Hour).Outcome)
	}, "concurrency") // has no slots ahead
}

// A slot that has passed by the time it is heard of is not started in, and not lost.
func TestAttemptHeardOfTooLate(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("l", 1, time.Hour, 3))
	b.attempt("a", 0)
	b.at(time.Second)
	again := b.attempt("a", 0)
	require.NoError(t, again.Wait(t.Context()))
	assert.Equal(t, noon.Add(time.Second), again.At.UTC())
	assert.EqualValues(t, 2, again.Limits[0].Remaining)
}

// A denial is no answer to keep: who asks again may have better luck.
func TestAttemptKeepsNoDenial(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("l", 1, time.Second, 1))
	require.Equal(t, throttle.Granted, b.attempt("a", 0).Outcome)
	before := b.contents()
	require.Equal(t, throttle.Denied, b.attempt("b", 0).Outcome)
	assert.Equal(t, before, b.contents())
	b.at(time.Second)
	assert.Equal(t, throttle.Granted, b.attempt("b", 0).Outcome)
	b.clock.Advance(time.Hour)
	assert.Empty(t, b.contents(), "answers expire")
}

// The answer gets lost on its way, and the client asks again by itself.
func TestLostAnswerIsNotPaidTwice(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		policy := throttletest.UniqueName(t)
		proxy := throttletest.NewProxy(t, server.Addr())
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 1})
		defer client.Close()
		limiter := newLimiter(t, client, policy, bucket("l", 1, time.Hour, 10))
		ask := func(attempt string) *throttle.Reservation {
			r, err := limiter.Reserve(t.Context(), throttle.Request{Policy: policy, Attempt: attempt})
			require.NoError(t, err)
			return r
		}
		ask("warm") // the script is there now
		proxy.LoseReply("evalsha")
		r := ask("x")
		assert.True(t, proxy.Lost(), "an answer was lost")
		assert.EqualValues(t, 8, r.Limits[0].Remaining)
	})
}
