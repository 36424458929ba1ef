package throttle_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// cachedScripts is how many scripts a server keeps, and how many bytes of memory they need.
func cachedScripts(t *testing.T, server *throttletest.Server) (scripts, kept int) {
	t.Helper()
	memory, err := server.Client().InfoMap(t.Context(), "memory").Result()
	require.NoError(t, err)
	scripts, err = strconv.Atoi(memory["Memory"]["number_of_cached_scripts"])
	require.NoError(t, err)
	kept, err = strconv.Atoi(memory["Memory"]["used_memory_scripts"])
	require.NoError(t, err)
	return scripts, kept
}

// A server keeps each script for good, so their number must not grow with policies or
// their numbers.
func TestScriptsDoNotGrowWithNumbers(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	config := func(version int) *policy.Config {
		config := &policy.Config{}
		for i := range 10 {
			var limits []policy.Limit
			for kind, limit := range fivePerMinute() {
				if limit.Name = kind; limit.Algorithm == policy.Concurrency {
					limit.Slots += int64(version)
				} else {
					limit.Rate.Count += int64(version)
				}
				if i == 0 || len(kind)%10 == i { // one policy of all kinds
					limits = append(limits, limit)
				}
			}
			if limits == nil {
				limits = []policy.Limit{bucket("l", int64(5+version), time.Minute, 5)}
			}
			config.Policies = append(config.Policies, policy.Policy{
				Name: strconv.Itoa(i), Limits: limits, Upstream: &policy.Upstream{},
			})
		}
		return config
	}
	limiter, err := throttle.New(server.Client(), config(0))
	require.NoError(t, err)
	use := func() {
		t.Helper()
		for i := range 10 {
			policy := strconv.Itoa(i)
			ask := throttle.Request{Policy: policy, TaskID: "1", Park: true, MaxWait: time.Second}
			_, err := limiter.Peek(t.Context(), ask)
			require.NoError(t, err)
			r, err := limiter.Reserve(t.Context(), ask)
			require.NoError(t, err)
			require.NoError(t, r.Adjust(t.Context(), nil))
			require.NoError(t, r.Settle(t.Context()))
			require.NoError(t, r.Cancel(t.Context()))
			_, err = limiter.Line(policy).Wake(t.Context(), line.Waking{As: "me"})
			require.NoError(t, err)
			require.NoError(t, limiter.Freeze(t.Context(), policy, 0))
		}
	}
	use()
	before, _ := cachedScripts(t, server)
	for version := range 100 {
		require.NoError(t, limiter.Update(config(version+1)))
		use()
	}
	after, kept := cachedScripts(t, server)
	assert.Equal(t, before, after)
	assert.Less(t, kept, 2_000_000, "bytes, with what Redis makes of the text")
}
