package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// journal records what ran, when and in which order. It is a handler.
type journal struct {
	mu    sync.Mutex
	tasks []string // "tenant/number"
	times []time.Time
	grown chan struct{} // has something when it grew
}

func newJournal() *journal { return &journal{grown: make(chan struct{}, 1)} }

func (j *journal) ProcessTask(_ context.Context, task *asynq.Task) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tasks = append(j.tasks, task.Headers()["tenant"]+"/"+task.Headers()["number"])
	j.times = append(j.times, time.Now())
	select {
	case j.grown <- struct{}{}:
	default:
	}
	return nil
}

// wait returns when n tasks ran.
func (j *journal) wait(t *testing.T, n int) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		j.mu.Lock()
		ran := len(j.tasks)
		j.mu.Unlock()
		if ran >= n {
			return
		}
		select {
		case <-j.grown:
		case <-timeout:
			t.Fatalf("%d tasks ran, waited for %d", ran, n)
		}
	}
}

// done is when the last task of a tenant ran, from the first of all.
func (j *journal) done(tenant string) (last time.Duration) {
	for i, task := range j.tasks {
		if len(task) > len(tenant) && task[:len(tenant)+1] == tenant+"/" {
			last = j.times[i].Sub(j.times[0])
		}
	}
	return last
}

// enqueueFor enqueues n tasks of a tenant.
func (r *testServer) enqueueFor(tenant string, n int) {
	r.t.Helper()
	for i := range n {
		r.enqueueWith(map[string]string{"tenant": tenant, "number": fmt.Sprintf("%04d", i)})
	}
}

// counted counts the attempts that asynq makes of all tasks.
func counted(middleware *worker.Middleware, handler asynq.Handler, attempts *atomic.Int64) asynq.Handler {
	inner := middleware.Wrap(handler)
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		attempts.Add(1)
		return inner.ProcessTask(ctx, task)
	})
}

// serveTwo runs two servers on one Redis, as two processes would.
func (r *testServer) serveTwo(handler asynq.Handler) (attempts *atomic.Int64) {
	r.t.Helper()
	attempts = new(atomic.Int64)
	for range 2 {
		limiter, err := throttle.New(r.limiter.Redis(), r.limiter.Config())
		require.NoError(r.t, err)
		middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter})
		require.NoError(r.t, err)
		server := asynq.NewServer(r.redis, middleware.Configure(asynq.Config{
			Concurrency: 10, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
		}))
		require.NoError(r.t, server.Start(counted(middleware, handler, attempts)))
		r.t.Cleanup(func() {
			server.Stop()
			middleware.Drain()
			server.Shutdown()
			assert.NoError(r.t, middleware.Close())
		})
	}
	return attempts
}

// Laws 4 to 7 in short, with real workers: a big tenant's backlog does not delay the
// small ones, every task runs once, in two attempts at most, and the quota is used.
func TestTenantsShareABacklog(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	r := newTestServer(t, server, throttle.Policy{Limits: perSecond(100, 1), Lane: "tenant"})
	r.enqueueFor("big", 400)
	for _, tenant := range []string{"a", "b", "c"} {
		r.enqueueFor(tenant, 10)
	}
	all := newJournal()
	attempts := r.serveTwo(all)
	all.wait(t, 430)
	r.allEnd()

	ran := slices.Clone(all.tasks)
	slices.Sort(ran)
	assert.Len(t, slices.Compact(ran), 430, "each once")
	assert.Len(t, all.tasks, 430)
	for _, tenant := range []string{"a", "b", "c"} {
		assert.Less(t, all.done(tenant), 3*time.Second, "in strict order it would be more than 4 s")
	}
	assert.LessOrEqual(t, float64(attempts.Load())/430, 2.1)
	assert.LessOrEqual(t, throttletest.MaxBurst(all.times, 100, time.Second), 1+9)
	assert.Greater(t, throttletest.Used(all.times, 1, 100, time.Second), 0.9)
	assert.Zero(t, r.queue().FailedTotal)
}

// Tasks that somebody deletes or archives while they stand in line make way, and stay
// as they are.
func TestLaidAsideTasksLeaveTheLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: perSecond(2, 1), Lane: "tenant", MaxWait: -1})
		all := newJournal()
		r.serve(all.ProcessTask)
		r.enqueueFor("a", 12)
		r.eventually("parked", func() bool { return r.queue().Retry >= 10 })
		tasks := r.retrying()
		last := tasks[len(tasks)-2:] // the furthest off
		require.NoError(t, r.inspector.DeleteTask("default", last[0].ID))
		require.NoError(t, r.inspector.ArchiveTask("default", last[1].ID))
		all.wait(t, 10)
		r.eventually("only the archived one", func() bool { return r.queue().Size == 1 })
		assert.Equal(t, 1, r.queue().Archived)
		r.eventually("an empty line", func() bool {
			return server.Client().Exists(t.Context(), "rm:{api}/line").Val() == 0
		})
	})
}

// If all that is known of a line is lost, asynq brings its tasks back when their
// rescheduled time has come. Here the test does.
func TestLostLineIsNoLoss(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	r := newTestServer(t, server, throttle.Policy{Limits: perSecond(20, 1), Lane: "tenant", MaxWait: -1})
	all := newJournal()
	r.serve(all.ProcessTask)
	r.enqueueFor("a", 60)
	r.eventually("parked", func() bool { return r.queue().Retry >= 40 })
	keys, err := server.Client().Keys(t.Context(), "rm:{api}/line*").Result()
	require.NoError(t, err)
	require.NoError(t, server.Client().Del(t.Context(), keys...).Err())
	_, err = r.inspector.RunAllRetryTasks("default")
	require.NoError(t, err)
	all.wait(t, 60)
	r.allEnd()
	assert.Zero(t, r.queue().FailedTotal)
}

// A task that is parked says so in its own error, which every asynq tool shows.
func TestParkedTaskTellsItsPlace(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: per(time.Minute), Lane: "tenant", MaxWait: -1})
	all := newJournal()
	r.serve(all.ProcessTask)
	r.enqueueFor("a", 2)
	r.eventually("parked", func() bool { return r.queue().Retry == 1 })
	assert.Regexp(t, `^throttled: policy "api" is held by "rate"; deferred until \S+Z `+
		`as number 1 in line of lane "a" since \S+Z, no retry spent$`, r.retrying()[0].LastErr)
}
