package producer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

const tickLost = "tick lost, the next one is not affected"

// schedulers runs so many of them, for what comes every second, until the test ends.
func schedulers(t *testing.T, rdb *redis.Client, n int) *observer.ObservedLogs {
	t.Helper()
	beat := producer.ScheduleEntry{Name: "beat", Cron: "* * * * * *", Entry: producer.Entry{Type: "beat"}}
	log, logs := observer.New(zap.InfoLevel)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, n)
	for range n {
		s, err := producer.NewScheduler(rdb, &producer.Schedule{Entries: []producer.ScheduleEntry{beat}}, zap.New(log))
		require.NoError(t, err)
		go func() { ended <- s.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range n {
			assert.NoError(t, <-ended)
		}
		assert.NoError(t, rdb.Close())
	})
	return logs
}

// bubbleTime has a Redis tell the time of the bubble that it is asked from.
type bubbleTime struct{ intercept }

func (bubbleTime) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if now, ok := cmd.(*redis.TimeCmd); ok {
			now.SetVal(time.Now())
			return nil
		}
		return next(ctx, cmd)
	}
}

// Of each tick one task is made, and no second one when it is done and gone from Redis:
// only the lock knows of its tick then.
func TestEachTickIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		synctest.Test(t, func(t *testing.T) {
			rdb := redis.NewClient(srv.Options())
			rdb.AddHook(bubbleTime{})
			logs := schedulers(t, rdb, 3)
			const ticks = 10
			var want []string
			for i := range ticks {
				<-time.After(time.Second)
				synctest.Wait()
				want = append(want, "schedule:beat:"+time.Now().UTC().Format(time.RFC3339))
				if i < ticks/2 {
					_, err := inspectorOn(srv).DeleteAllPendingTasks("default")
					require.NoError(t, err)
				}
			}
			var ids []string
			for _, entry := range logs.FilterMessage("enqueued").All() {
				ids = append(ids, entry.ContextMap()["id"].(string))
				assert.Equal(t, entry.Time.UTC(), entry.ContextMap()["tick"], "the tick is not the one that is due")
			}
			assert.Equal(t, want, ids)
			assert.Empty(t, logs.FilterMessage("already there").All(), "it is the lock that keeps a tick from coming twice, not the task's ID")
			assert.Empty(t, logs.FilterMessage(tickLost).All())
			tasks, err := inspectorOn(srv).ListPendingTasks("default", asynq.PageSize(100))
			require.NoError(t, err)
			assert.Len(t, tasks, ticks/2)
		})
	})
}

func TestSchedulerGoesOnAfterRedisWasGone(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		proxy := throttletest.NewProxy(t, srv.Addr())
		// With one connection, no other is on its way while that one is cut.
		logs := schedulers(t, redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: 1}), 1)
		await := func(message string) {
			logs.TakeAll()
			require.Eventually(t, func() bool { return logs.FilterMessage(message).Len() > 0 }, patience, 10*time.Millisecond, message)
		}
		await("enqueued")
		proxy.Cut()
		await(tickLost)
		proxy.Mend()
		await("enqueued")
	})
}

func TestNewSchedulerRefusesABadSchedule(t *testing.T) {
	t.Parallel()
	_, err := producer.NewScheduler(nil, &producer.Schedule{}, nil)
	require.ErrorContains(t, err, "schedule: is empty")
}
