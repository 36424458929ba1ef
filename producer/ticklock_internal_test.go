package producer

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// schedulerOf returns one that is known as that holder.
func schedulerOf(rdb redis.UniversalClient, holder string) *Scheduler {
	return &Scheduler{rdb: rdb, producer: FromClient(asynq.NewClientFromRedisClient(rdb)), holder: holder, log: zap.NewNop()}
}

func TestTickLockIsTakenOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		tick := time.Now().Truncate(time.Second)
		first, second := schedulerOf(srv.Client(), "first"), schedulerOf(srv.Client(), "second")
		require.NoError(t, first.take(t.Context(), "job", tick))
		require.ErrorIs(t, second.take(t.Context(), "job", tick), errTaken)
		require.NoError(t, second.take(t.Context(), "job", tick.Add(time.Second)), "the next tick is another one")

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
		me := schedulerOf(srv.Client(), "me")
		require.NoError(t, me.take(t.Context(), "job", tick))
		require.NoError(t, me.take(t.Context(), "job", tick), "the same call again, as after a lost answer")
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
		return schedulerOf(srv.Client(), holder).take(t.Context(), "job", tick)
	}
	require.ErrorIs(t, at("an hour fast", tick.Add(-time.Hour)), errSkewed)
	require.ErrorIs(t, at("just too fast", tick.Add(-MaxSkew-time.Microsecond)), errSkewed)
	require.NoError(t, at("as fast as may be", tick.Add(-MaxSkew)))
	require.ErrorIs(t, at("right", tick), errTaken)
	require.ErrorIs(t, at("as slow as may be", tick.Add(MaxSkew)), errTaken)
	require.ErrorIs(t, at("just too slow", tick.Add(MaxSkew+time.Microsecond)), errSkewed)
	require.ErrorIs(t, at("an hour slow", tick.Add(time.Hour)), errSkewed)
}

// A tick is locked before its task is enqueued, and nobody else would do that.
func TestTickUnderWayIsFinishedWhenTheSchedulerStops(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	schedulerOf(srv.Client(), "me").enqueue(ctx, &ScheduleEntry{Name: "job", Entry: Entry{Type: "t"}}, time.Now())
	tasks, err := asynq.NewInspectorFromRedisClient(srv.Client()).ListPendingTasks("default")
	require.NoError(t, err)
	assert.Len(t, tasks, 1)
}
