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
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// One script call reaches all keys of a policy in a Redis Cluster; policies spread
// over its nodes.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	cluster := throttletest.Cluster(t)
	shared, own := bucket("shared", 20, time.Hour, 20), window("own", 15, time.Hour, throttle.AnchorFirst)
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
