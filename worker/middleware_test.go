package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// asynq fact 1, on which isLastAttempt rests: it archives a task that returns an
// error from its last attempt, even one that IsFailure disowns.
func TestAsynqArchivesLastAttempts(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: perSecond(1, 1)})
	server := asynq.NewServer(r.redis, asynq.Config{
		IsFailure: func(error) bool { return false }, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond,
	})
	require.NoError(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		return errors.New("not a failure")
	})))
	defer server.Shutdown()
	r.enqueue(1, asynq.MaxRetry(0))
	r.eventually("archived", func() bool { return r.queue().Archived == 1 })
}

// Law 4: tasks with no retries left, enqueued by plain asynq code, all run.
func TestLastAttemptsAllRun(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: perSecond(50, 1), MaxWait: time.Millisecond})
		r.enqueue(300, asynq.MaxRetry(0))
		all := count(300)
		began := time.Now()
		r.serve(all.ProcessTask)
		all.wait(t)
		assert.Greater(t, time.Since(began), 5900*time.Millisecond, "and none too early")
		r.allEnd()
		assert.Zero(t, r.queue().FailedTotal)
		assert.Zero(t, r.reported.Load())
	})
}

// The same for a task whose retries were spent on real failures.
func TestLastRetryRuns(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: perSecond(2, 1), MaxWait: -1})
	all := count(3)
	var failed atomic.Int64
	r.serve(func(ctx context.Context, task *asynq.Task) error {
		if retried, _ := asynq.GetRetryCount(ctx); retried == 0 {
			failed.Add(1)
			return fmt.Errorf("a real failure")
		}
		return all.ProcessTask(ctx, task)
	})
	r.enqueue(3, asynq.MaxRetry(1))
	r.eventually("three failures", func() bool { return failed.Load() == 3 && r.queue().Retry == 3 })
	for _, task := range r.retrying() { // now, not after asynq's backoff
		require.NoError(t, r.inspector.RunTask("default", task.ID))
	}
	all.wait(t)
	r.allEnd()
	assert.Equal(t, int64(3), r.reported.Load(), "the program hears of its own failures alone")
}

// What can not start soon is rescheduled: each task for a time of its own, as no
// failure, with a message that says what it waits for.
func TestFarTasksAreRescheduled(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Minute), MaxWait: -1})
		all := count(1)
		r.serve(all.ProcessTask)
		r.enqueue(8)
		all.wait(t)
		r.eventually("seven deferred", func() bool { return r.queue().Retry == 7 })

		var last time.Time
		for i, task := range r.retrying() {
			assert.Zero(t, task.Retried)
			assert.Contains(t, task.LastErr, `throttled: policy "api" is held by "rate"; deferred until `)
			if i > 0 {
				assert.GreaterOrEqual(t, task.NextProcessAt.Sub(last), 59*time.Second, "no common time")
			}
			last = task.NextProcessAt
		}
		assert.Zero(t, r.queue().FailedTotal)
		assert.Zero(t, r.reported.Load())
	})
}

// And runs when its time has come.
func TestRescheduledTasksRun(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: perSecond(5, 1), MaxWait: 100 * time.Millisecond})
		all := count(20)
		r.enqueue(20)
		r.serve(all.ProcessTask)
		all.wait(t)
		r.allEnd()
		assert.Equal(t, int64(20), all.runs.Load())
	})
}

func TestUnfitTasksAreArchivedWithTheReason(t *testing.T) {
	t.Parallel()
	limits := perSecond(10, 10)
	limits[0].Per, limits[0].Cost = "installation", "points"
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: limits})
	for _, headers := range []map[string]string{
		{}, {"installation": "1", "points": "many"}, {"installation": "1", "points": "11"},
	} {
		r.enqueueWith(headers)
	}
	none := count(1)
	r.serve(none.ProcessTask)
	r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
	reasons := strings.Join(r.archived(), "\n")
	assert.Contains(t, reasons, `attribute "installation" is missing: limit "rate" of policy "api" needs it`)
	assert.Contains(t, reasons, `attribute "points" is "many", not a whole number above 0: limit "rate" of policy "api"`)
	assert.Contains(t, reasons, `cost 11 can never pass: limit "rate" of policy "api" holds at most 10`)
	assert.Zero(t, none.runs.Load())
	assert.Equal(t, int64(3), r.reported.Load())
}

// Tasks of a type that no route names are not our business.
func TestUnroutedTasksPassThrough(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), throttle.Policy{Limits: per(time.Hour)})
	all := count(5)
	r.serve(all.ProcessTask)
	for range 5 {
		r.add(asynq.NewTask("other", nil))
	}
	all.wait(t)
}

// Law 4 at a shutdown: waits end at once, slots are given back, and tasks go back
// unharmed.
func TestShutdownEndsWaits(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Minute), MaxWait: time.Hour})
		r.config.ShutdownTimeout = 20 * time.Second
		first := count(1)
		stop := r.serve(first.ProcessTask)
		r.enqueue(6)
		first.wait(t)
		r.eventually("five waiting", func() bool { return r.queue().Active == 5 })
		r.eventually("five slots taken", func() bool { return r.peek().RetryAfter() > 5*time.Minute-10*time.Second })
		assert.Less(t, stop(), 5*time.Second)

		assert.Less(t, r.peek().RetryAfter(), 2*time.Minute, "slots are given back")
		assert.Equal(t, 5, r.queue().Retry)
		for _, task := range r.retrying() {
			assert.Zero(t, task.Retried)
			assert.WithinDuration(t, time.Now(), task.NextProcessAt, 10*time.Second)
		}
	})
}

func (r *testServer) peek() *throttle.Decision {
	r.t.Helper()
	d, err := r.limiter.Peek(r.t.Context(), throttle.Request{Policy: "api"})
	require.NoError(r.t, err)
	return &d
}

// The same for tasks on their last attempt: they can not be returned to asynq, so
// asynq takes them back when the shutdown's time is up.
func TestShutdownKeepsLastAttempts(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: per(time.Minute)})
		first := count(1)
		stop := r.serve(first.ProcessTask)
		r.enqueue(4, asynq.MaxRetry(0))
		first.wait(t)
		r.eventually("three waiting", func() bool { return r.queue().Active+r.queue().Scheduled == 3 })
		assert.Less(t, stop(), 8*time.Second)
		assert.Equal(t, 3, r.queue().Pending+r.queue().Scheduled)
		assert.Zero(t, r.queue().Archived)
	})
}

// Law 8 in short: a 429 closes the policy for all, and its task runs again at no
// cost, even on its last attempt.
func TestRateLimitedTasksRunAgain(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: perSecond(100, 100)})
		all := count(10)
		var refused atomic.Bool
		var reopened atomic.Int64
		r.serve(func(ctx context.Context, task *asynq.Task) error {
			if refused.CompareAndSwap(false, true) {
				reopened.Store(time.Now().Add(700 * time.Millisecond).UnixNano())
				return &throttle.RateLimitedError{Status: "429 Too Many Requests", RetryAfter: 700 * time.Millisecond}
			}
			return all.ProcessTask(ctx, task)
		})
		r.enqueue(1, asynq.MaxRetry(0))
		r.eventually("frozen", func() bool { return r.peek().HeldBy == throttle.HeldByFreeze })
		r.enqueue(9, asynq.MaxRetry(0))
		all.wait(t)
		assert.Greater(t, time.Now().UnixNano(), reopened.Load())
		r.allEnd()
		assert.Zero(t, r.queue().FailedTotal)
	})
}

// Law 10: when Redis can not be asked, nothing starts. The task stays here, for asynq
// could not be told, either; it runs when Redis is back, or is given back at no charge.
func TestNothingStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then func(m *worker.Middleware, back *atomic.Bool)
		want int64
	}{
		"until it is back":       {func(_ *worker.Middleware, back *atomic.Bool) { back.Store(true) }, 1},
		"until the process ends": {func(m *worker.Middleware, _ *atomic.Bool) { m.Drain() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, back := throttletest.Embedded(t), new(atomic.Bool)
			client := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if !back.Load() {
					return nil, errors.New("unreachable")
				}
				return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
			}})
			defer client.Close()
			limiter, err := throttle.New(client, newTestServer(t, server, throttle.Policy{Limits: perSecond(1, 1)}).config.Policies)
			require.NoError(t, err)
			log, logs := observer.New(zap.WarnLevel)
			middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter, Logger: zap.New(log)})
			require.NoError(t, err)
			defer middleware.Close()

			runs, ended := count(1), make(chan error, 1)
			go func() { ended <- middleware.Wrap(runs).ProcessTask(t.Context(), asynq.NewTask("call", nil)) }()
			require.Eventually(t, func() bool { return logs.FilterMessageSnippet("could not ask Redis").Len() > 0 },
				10*time.Second, time.Millisecond)
			assert.Zero(t, runs.runs.Load())
			assert.Empty(t, ended)

			test.then(middleware, back)
			err = <-ended
			assert.Equal(t, test.want, runs.runs.Load())
			if test.want > 0 {
				assert.NoError(t, err)
				return
			}
			throttled := (*throttle.ThrottledError)(nil)
			require.ErrorAs(t, err, &throttled)
			assert.Error(t, throttled.Cause)
			assert.False(t, middleware.Configure(asynq.Config{}).IsFailure(err))
		})
	}
}
