package throttle_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// One script call reaches all keys of a policy in a Redis Cluster; policies spread
// over its nodes.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	cluster := throttletest.Cluster(t)
	shared, own := bucket("shared", 20, time.Hour, 20), window("own", 15, time.Hour, policy.AnchorFirst)
	own.Per = "user"
	for i := range 6 {
		policy := "policy-" + strconv.Itoa(i)
		limiter := newLimiter(t, cluster, policy, shared, own)
		var granted atomic.Int64
		var all sync.WaitGroup
		for n := range 60 {
			all.Go(func() {
				r, err := limiter.Reserve(t.Context(), throttle.Request{
					Policy: policy, Attributes: map[string]string{"user": strconv.Itoa(n % 2)},
				})
				if assert.NoError(t, err) && r.Outcome == throttle.Granted {
					granted.Add(1)
				}
			})
		}
		all.Wait()
		assert.Equal(t, int64(20), granted.Load())
		require.NoError(t, limiter.Freeze(t.Context(), policy, time.Minute))
		d, err := limiter.Peek(t.Context(), throttle.Request{Policy: policy, Attributes: map[string]string{"user": "0"}})
		require.NoError(t, err)
		assert.Equal(t, int64(0), d.Limits[0].Remaining)
	}
}

// Every operation on every algorithm works there, all of them in one policy.
func TestRedisClusterKnowsEveryAlgorithm(t *testing.T) {
	t.Parallel()
	cluster := throttletest.Cluster(t)
	rate := policy.Rate{Count: 5, Period: time.Minute}
	interval := bucket("interval", 5, time.Minute, 5)
	interval.Refill = policy.RefillInterval
	limits := []policy.Limit{
		bucket("smooth", 5, time.Minute, 5), interval, window("window", 5, time.Minute, policy.AnchorClock),
		{Name: "log", Algorithm: policy.SlidingLog, Rate: rate},
		{Name: "buckets", Algorithm: policy.SlidingWindow, Rate: rate},
		{Name: "slots", Algorithm: policy.Concurrency, Slots: 5},
		spacing("spaced", 1, time.Microsecond),
	}
	for i := range limits {
		limits[i].Cost = "points"
	}
	policy := throttletest.UniqueName(t)
	limiter := newLimiter(t, cluster, policy, limits...)
	ask := func(task string) *throttle.Reservation {
		r, err := limiter.Reserve(t.Context(), throttle.Request{
			Policy: policy, TaskID: task, Attributes: map[string]string{"points": "2"},
		})
		require.NoError(t, err)
		return r
	}
	first, second := ask("1"), ask("2")
	require.Equal(t, throttle.Granted, first.Outcome)
	require.Equal(t, throttle.Granted, second.Outcome)
	assert.Equal(t, throttle.Denied, ask("3").Outcome)

	require.NoError(t, second.Cancel(t.Context()))
	require.NoError(t, first.Adjust(t.Context(), map[string]string{"points": "1"}))
	first.Hold(t.Context())
	require.NoError(t, first.Release(t.Context()))
	starts, err := limiter.Recent(t.Context(), throttle.Request{Policy: policy}, "log", 10)
	require.NoError(t, err)
	require.Len(t, starts, 1)
	assert.Equal(t, "1", starts[0].TaskID)

	d, err := limiter.Peek(t.Context(), throttle.Request{Policy: policy, Attributes: map[string]string{"points": "2"}})
	require.NoError(t, err)
	assert.Equal(t, throttle.Granted, d.Outcome)
	for _, status := range d.Limits {
		left := int64(4) // of 5, one start of cost 1
		switch status.Name {
		case "slots":
			left = 5 // that task has ended
		case "spaced":
			left = 1
		}
		assert.Equal(t, left, status.Remaining, status.Name)
	}
}
