package throttle_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A policy may have limits of all kinds, a lane and an upstream: its scripts stay
// within what Lua takes, such as 200 local variables.
func TestEveryScriptOfEveryAlgorithmLoads(t *testing.T) {
	t.Parallel()
	var limits []policy.Limit
	for kind, limit := range fivePerMinute() {
		limit.Name = kind
		if limit.Algorithm != policy.Spacing { // which has none
			limit.Headroom.Tokens = 1
		}
		limits = append(limits, limit)
	}
	p := policy.Policy{Name: "all", Limits: limits, Lane: "tenant", Upstream: &policy.Upstream{}}
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limiter, err := throttle.New(server.Client(), &policy.Config{Policies: []policy.Policy{p}})
		require.NoError(t, err)
		scripts := reflect.ValueOf(throttle.ScriptsOf(limiter, "all"))
		for i := range scripts.NumField() {
			script, ok := scripts.Field(i).Interface().(*redis.Script)
			require.True(t, ok)
			require.NoError(t, script.Load(t.Context(), server.Client()).Err(), scripts.Type().Field(i).Name)
		}
		r, err := limiter.Reserve(t.Context(), throttle.Request{
			Policy: "all", TaskID: "1", Park: true, MaxWait: time.Second, Attributes: map[string]string{"tenant": "a"},
		})
		require.NoError(t, err)
		require.Equal(t, throttle.Granted, r.Outcome)
		behind := throttle.Request{Policy: "all", TaskID: "2", Attributes: map[string]string{"tenant": "a"}}
		_, err = limiter.LookAhead(t.Context(), behind)
		require.NoError(t, err)
		joined, err := limiter.Join(t.Context(), behind, time.Time{})
		require.NoError(t, err)
		require.Equal(t, int64(1), joined.Place.Position)
	})
}
