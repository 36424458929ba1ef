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

// asker lets tasks ask that join the line unless they would start too late.
func asker(t *testing.T, limiter *throttle.Limiter) func(task string, maxDefer time.Duration) *throttle.Reservation {
	return func(task string, maxDefer time.Duration) *throttle.Reservation {
		t.Helper()
		r, err := limiter.Reserve(t.Context(), throttle.Request{Policy: "api", TaskID: task, Park: true, MaxDefer: maxDefer})
		require.NoError(t, err)
		return r
	}
}

// Law 2 for who is turned away: nothing in Redis tells of it.
func TestTurnedAwayLeavesNoTrace(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("rate", 1, time.Minute, 1))
	ask := asker(t, b.limiter)
	require.Equal(t, throttle.Granted, ask("a", time.Second).Outcome)
	for _, maxDefer := range []time.Duration{-1, time.Microsecond, time.Minute - time.Microsecond} {
		before := b.contents()
		r := ask("b", maxDefer)
		assert.Equal(t, throttle.Denied, r.Outcome)
		assert.True(t, r.TurnedAway)
		assert.Equal(t, time.Minute, r.RetryAfter())
		assert.EqualValues(t, 1, r.Place.Position)
		assert.Equal(t, before, b.contents(), maxDefer)
		overload := (*throttle.OverloadError)(nil)
		require.ErrorAs(t, r.Wait(t.Context()), &overload)
		assert.Equal(t, noon.Add(time.Minute), overload.Place.Expected.UTC())
	}

	r := ask("b", time.Minute)
	require.False(t, r.TurnedAway)
	throttled := (*throttle.ThrottledError)(nil)
	require.ErrorAs(t, r.Wait(t.Context()), &throttled)
	before := b.contents()
	r = ask("c", 2*time.Minute-time.Microsecond)
	assert.True(t, r.TurnedAway, "it would be behind the other")
	assert.EqualValues(t, 2, r.Place.Position)
	assert.Equal(t, before, b.contents())
	assert.EqualError(t, r.Overloaded(), `overload: policy "api" is held by "rate", start expected at 2026-01-05T12:02:00.000Z, `+
		`in 2m0s, as number 2 in line; max_defer is 1m59.999999s`)
}

// Who stands in line and may not any more leaves it, and those behind move up.
func TestLeavingTheLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limiter := newLimiter(t, server.Client(), "api", bucket("rate", 1, time.Hour, 1))
		ask := asker(t, limiter)
		require.Equal(t, throttle.Granted, ask("a", 0).Outcome)
		for i, task := range []string{"b", "c", "d"} {
			require.EqualValues(t, i+1, ask(task, 0).Place.Position)
		}
		require.True(t, ask("c", time.Minute).TurnedAway)
		assert.EqualValues(t, 2, ask("d", 0).Place.Position)
		require.True(t, ask("b", -1).TurnedAway)
		assert.EqualValues(t, 1, ask("d", 0).Place.Position)
		require.True(t, ask("d", -1).TurnedAway)
		assert.EqualValues(t, 1, ask("e", 0).Place.Position)
	})
}

// Time does not tell when a slot of a concurrency limit is free, so only who may not
// stand in line at all is turned away.
func TestLeasesTurnNobodyAway(t *testing.T) {
	t.Parallel()
	slots := policy.Limit{Name: "slots", Algorithm: policy.Concurrency, Slots: 1}
	b := newTestLimiter(t, slots, bucket("rate", 1, time.Minute, 3))
	ask := asker(t, b.limiter)
	first := ask("a", 0)
	require.Equal(t, throttle.Granted, first.Outcome)
	assert.False(t, ask("b", time.Microsecond).TurnedAway)
	assert.True(t, ask("b", -1).TurnedAway)
	require.NoError(t, first.Release(t.Context()))
	require.Equal(t, throttle.Granted, ask("b", -1).Outcome, "a last call may still succeed")
}
