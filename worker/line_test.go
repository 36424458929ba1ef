package worker_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// serveTwo runs two servers on one Redis, as two processes would, and counts the attempts
// that asynq makes of all tasks.
func (r *testServer) serveTwo(handler asynq.Handler) (attempts *atomic.Int64) {
	r.t.Helper()
	attempts = new(atomic.Int64)
	for range 2 {
		limiter, err := throttle.New(r.limiter.Redis(), r.limiter.Config())
		require.NoError(r.t, err)
		middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter, Logger: r.config.Logger})
		require.NoError(r.t, err)
		server := asynq.NewServer(r.redis, middleware.Configure(asynq.Config{
			Concurrency: 10, Logger: r.config.Logger.Sugar(), ShutdownTimeout: time.Second,
		}))
		inner := middleware.Wrap(handler)
		require.NoError(r.t, server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			attempts.Add(1)
			return inner.ProcessTask(ctx, task)
		})))
		r.t.Cleanup(func() {
			server.Stop()
			middleware.Drain()
			server.Shutdown()
			assert.NoError(r.t, middleware.Close())
		})
	}
	return attempts
}

// enqueueBacklog enqueues tasks of a big tenant, and behind them those of three small ones.
func (r *testServer) enqueueBacklog(big, small int) (n int) {
	r.t.Helper()
	r.enqueueFor(big, "big")
	r.enqueueFor(3*small, "a", "b", "c")
	return big + 3*small
}

// Laws 1, 4, 5 and 7 in short, with real workers: a big tenant's backlog does not delay
// the small ones, and every task runs once, in about two attempts.
func TestTenantsShareABacklog(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Redis(t), policy.Policy{Limits: perSecond(100, 1), Lane: "tenant"})
	const big, small = 200, 8
	r.freeze()
	n := r.enqueueBacklog(big, small)
	all := newJournal()
	attempts := r.serveTwo(all)
	r.parked(n)
	opened := r.open()
	all.wait(t, n)
	r.allEnd()

	ran := slices.Sorted(slices.Values(all.tasks))
	assert.Len(t, slices.Compact(ran), n, "each once")
	assert.Len(t, all.tasks, n)
	last := n - 1
	for strings.HasPrefix(all.tasks[last], "big/") {
		last--
	}
	assert.Less(t, last, big/2, "the small ones end with number 32 by their shares, and with the last of all in strict order")
	assert.LessOrEqual(t, attempts.Load(), int64(3*n))
	assert.LessOrEqual(t, throttletest.BurstSince(opened, all.times, 100, time.Second), 1)
	assert.Zero(t, r.queue().FailedTotal)
}

// Tasks that somebody deletes or archives while they stand in line make way, and stay
// as they are.
func TestLaidAsideTasksLeaveTheLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: perSecond(50, 1), Lane: "tenant", MaxWait: -1})
		all := newJournal()
		r.park(all, 12, "a")
		tasks := r.retrying()
		require.NoError(t, r.inspector.DeleteTask("default", tasks[0].ID))
		require.NoError(t, r.inspector.ArchiveTask("default", tasks[11].ID))
		r.open()
		all.wait(t, 10)
		r.eventually("only the archived one, and an empty line", func() bool { return r.queue().Size == 1 && len(r.lineKeys()) == 0 })
		assert.Equal(t, 1, r.queue().Archived)
		assert.Len(t, all.ran(), 10)
	})
}

// If all that is known of a line is lost, asynq brings its tasks back when their
// rescheduled time has come. Here the test does.
func TestLostLineIsNoLoss(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	r := newTestServer(t, server, policy.Policy{Limits: perSecond(50, 1), Lane: "tenant", MaxWait: -1})
	all := newJournal()
	r.park(all, 40, "a")
	require.NoError(t, server.Client().Del(t.Context(), r.lineKeys()...).Err())
	r.open()
	_, err := r.inspector.RunAllRetryTasks("default")
	require.NoError(t, err)
	all.wait(t, 40)
	r.allEnd()
	assert.Zero(t, r.queue().FailedTotal)
}

// Law 13: tasks that nobody can dequeue, because their queue is paused, stop no others of
// their line, however many they are; and they run once it is not.
func TestPausedQueueStopsNoOther(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: perSecond(200, 1), MaxWait: -1})
		r.config.Queues = map[string]int{"default": 1, "paused": 1}
		const paused, served = 400, 40
		r.freeze()
		r.enqueueTo("paused", paused)
		r.enqueueTo("default", served)
		all := newJournal()
		r.serve(all.ProcessTask)
		r.eventually("all parked", func() bool {
			other, err := r.inspector.GetQueueInfo("paused")
			return err == nil && other.Retry == paused && r.queue().Retry == served
		})
		require.NoError(t, r.inspector.PauseQueue("paused"))
		r.open()
		all.wait(t, served)
		r.allEnd()
		assert.Len(t, all.ran(), served)
		require.NoError(t, r.inspector.UnpauseQueue("paused"))
		all.wait(t, served+paused)
	})
}
