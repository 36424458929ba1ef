package throttle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A key of ours that holds something else is somebody else's: it is an error, and
// it and the other limits stay as they are.
func TestForeignKeyIsLeftAlone(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			const key = "rm:{api}:l"
			client, other := server.Client(), bucket("other", 1, time.Minute, 1)
			limiter := newLimiter(t, client, "api", other, limit, bucket("more", 1, time.Minute, 1))
			for _, put := range [][]any{
				{"SET", key, "mine"}, {"SET", key, ""}, {"SET", key, "1/2"}, {"SET", key, "1/2/3:"},
				{"HSET", key, "mine", 1}, {"RPUSH", key, "mine"}, {"SADD", key, "mine"},
			} {
				require.NoError(t, client.Do(t.Context(), put...).Err())
				before := client.Dump(t.Context(), key).Val()
				_, err := limiter.Reserve(t.Context(), request(0))
				require.ErrorContains(t, err, "RAMPMETER key "+key+" holds", put)
				assert.Equal(t, before, client.Dump(t.Context(), key).Val())
				assert.EqualValues(t, 1, client.DBSize(t.Context()).Val(), "this key alone")
				require.NoError(t, client.Del(t.Context(), key).Err())
			}
		})
	})
}

func isSortedSet(l policy.Limit) bool {
	return l.Algorithm == policy.SlidingLog || l.Algorithm == policy.Concurrency
}

// A limit that changes its algorithm meets the state that the other one left: an
// error that says so, and nothing is changed.
func TestStateOfAnotherAlgorithmIsLeftAlone(t *testing.T) {
	t.Parallel()
	interval := bucket("l", 5, time.Minute, 5)
	interval.Refill = policy.RefillInterval
	limits := []policy.Limit{
		bucket("l", 5, time.Minute, 5), interval, window("l", 5, time.Minute, policy.AnchorFirst),
		{Name: "l", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: 5, Period: time.Minute}},
		{Name: "l", Algorithm: policy.SlidingWindow, Rate: policy.Rate{Count: 5, Period: time.Minute}},
		{Name: "l", Algorithm: policy.Concurrency, Slots: 5},
		spacing("l", 5, time.Minute),
	}
	for i, left := range limits {
		for j, met := range limits {
			if i == j || isSortedSet(left) && isSortedSet(met) { // those two can not be told apart
				continue
			}
			b := newTestLimiter(t, left)
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
