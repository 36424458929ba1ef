package producer

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// lockOf returns a scheduler's lock whose timer is set for a tick.
func lockOf(rdb redis.UniversalClient, holder string, tick time.Time) *tickLock {
	return &tickLock{rdb: rdb, name: "job", holder: holder, schedule: &ticks{armed: tick}, log: zap.NewNop()}
}

func TestTickLockIsTakenOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		tick := time.Now().Truncate(time.Second)
		first, second := lockOf(srv.Client(), "first", tick), lockOf(srv.Client(), "second", tick)
		lock, err := first.Lock(t.Context(), "")
		require.NoError(t, err)
		assert.Equal(t, tick, first.lockedTick())
		require.NoError(t, lock.Unlock(t.Context()))

		_, err = second.Lock(t.Context(), "")
		require.ErrorIs(t, err, errTaken, "a tick stays taken after its job is done")
		assert.Empty(t, second.locked)

		_, err = lockOf(srv.Client(), "second", tick.Add(time.Second)).Lock(t.Context(), "")
		require.NoError(t, err, "the next tick is another one")

		life, err := srv.Client().PTTL(t.Context(), lockKey("job", tick)).Result()
		require.NoError(t, err)
		assert.Positive(t, life, "a lock expires by itself")
		assert.LessOrEqual(t, life, lockLife)
	})
}

func TestTickLockKnowsItsOwn(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		tick := time.Now().Truncate(time.Second)
		lock := lockOf(srv.Client(), "me", tick)
		require.NoError(t, lock.take(t.Context(), tick))
		require.NoError(t, lock.take(t.Context(), tick), "the same call again, as after a lost answer")
	})
}

// However far apart their clocks, two schedulers within MaxSkew never take the
// same tick, and one beyond it takes none.
func TestTickLockOutlivesTheSkewOfClocks(t *testing.T) {
	t.Parallel()
	tick := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	srv, clock := throttletest.EmbeddedAt(t, tick)
	at := func(holder string, redisTime time.Time) error {
		clock.Set(redisTime)
		return lockOf(srv.Client(), holder, tick).take(t.Context(), tick)
	}
	require.ErrorIs(t, at("an hour fast", tick.Add(-time.Hour)), errSkewed)
	require.ErrorIs(t, at("just too fast", tick.Add(-MaxSkew-time.Microsecond)), errSkewed)
	require.NoError(t, at("as fast as may be", tick.Add(-MaxSkew)))
	require.ErrorIs(t, at("right", tick), errTaken)
	require.ErrorIs(t, at("as slow as may be", tick.Add(MaxSkew)), errTaken)
	require.ErrorIs(t, at("just too slow", tick.Add(MaxSkew+time.Microsecond)), errSkewed)
	require.ErrorIs(t, at("an hour slow", tick.Add(time.Hour)), errSkewed)
}

func TestTickLockFinishesWhatAStopInterrupts(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := lockOf(srv.Client(), "me", time.Now()).Lock(ctx, "")
	require.NoError(t, err)
}
