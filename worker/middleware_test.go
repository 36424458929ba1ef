package worker_test

import (
	"context"
	"fmt"
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
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// Law 4: tasks with no retries left, enqueued by plain asynq code, all run, and none too
// early.
func TestLastAttemptsAllRun(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const n, rate = 120, 60
		r := newTestServer(t, server, policy.Policy{Limits: perSecond(rate, 1), MaxWait: time.Millisecond})
		r.enqueue(n, asynq.MaxRetry(0))
		all := newJournal()
		began := time.Now()
		r.serve(all.ProcessTask)
		all.wait(t, n)
		r.allEnd()
		assert.LessOrEqual(t, throttletest.BurstSince(began, all.times, rate, time.Second), 1)
		assert.Len(t, all.times, n)
		assert.Zero(t, r.queue().FailedTotal)
		assert.Zero(t, r.reported.Load())
	})
}

// The same for a task whose retries were spent on real failures.
func TestLastRetryRuns(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: perSecond(10, 1), MaxWait: -1})
	all := newJournal()
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
	all.wait(t, 3)
	r.allEnd()
	assert.Equal(t, int64(3), r.reported.Load(), "the program hears of its own failures alone")
}

// What can not start soon is rescheduled: each task for a time of its own, as no
// failure, with a message that says what it waits for, which every asynq tool shows. It
// runs when its time has come.
func TestFarTasksAreRescheduled(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(time.Hour), Lane: "tenant", MaxWait: -1})
		all := newJournal()
		serving, _ := r.run(all)
		r.enqueueFor(8, "a")
		all.wait(t, 1)
		r.eventually("seven deferred", func() bool { return r.queue().Retry == 7 })

		var last time.Time
		for i, task := range r.retrying() {
			assert.Zero(t, task.Retried)
			assert.Regexp(t, `^throttled: policy "api" is held by "rate"; deferred until \S+Z `+
				`as number \d in line of lane "a" since \S+Z, no retry spent$`, task.LastErr)
			if i > 0 {
				assert.GreaterOrEqual(t, task.NextProcessAt.Sub(last), 59*time.Minute, "no common time")
			}
			last = task.NextProcessAt
		}
		require.NoError(t, serving.Update(r.instead(policy.Policy{Limits: perSecond(20, 1), Lane: "tenant"})))
		all.wait(t, 8)
		r.allEnd()
		assert.Len(t, all.ran(), 8)
		assert.Zero(t, r.queue().FailedTotal)
		assert.Zero(t, r.reported.Load())
	})
}

func TestUnfitTasksAreArchivedWithTheReason(t *testing.T) {
	t.Parallel()
	limits := perSecond(10, 10)
	limits[0].Per, limits[0].Cost = "installation", "points"
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: limits})
	for _, headers := range []map[string]string{
		{}, {"installation": "1", "points": "many"}, {"installation": "1", "points": "11"},
	} {
		r.enqueueWith(headers)
	}
	none := newJournal()
	r.serve(none.ProcessTask)
	r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
	reasons := strings.Join(r.archived(), "\n")
	assert.Contains(t, reasons, `attribute "installation" is missing: limit "rate" of policy "api" needs it`)
	assert.Contains(t, reasons, `attribute "points" is "many", not a whole number above 0: limit "rate" of policy "api"`)
	assert.Contains(t, reasons, `cost 11 can never pass: limit "rate" of policy "api" holds at most 10`)
	assert.Empty(t, none.ran())
	assert.Equal(t, int64(3), r.reported.Load())
}

func (r *testServer) peek() *throttle.Decision {
	r.t.Helper()
	d, err := r.limiter.Peek(r.t.Context(), throttle.Request{Policy: "api"})
	require.NoError(r.t, err)
	return &d
}

// Law 8 in short: a 429 closes the policy for all, and its task runs again at no
// cost, even on its last attempt.
func TestRateLimitedTasksRunAgain(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: perSecond(100, 100)})
		all := newJournal()
		var refused atomic.Bool
		r.serve(func(ctx context.Context, task *asynq.Task) error {
			if refused.CompareAndSwap(false, true) {
				return &throttle.RateLimitedError{Status: "429 Too Many Requests", RetryAfter: time.Hour}
			}
			return all.ProcessTask(ctx, task)
		})
		r.enqueue(1, asynq.MaxRetry(0))
		r.eventually("frozen", func() bool { return r.peek().HeldBy == throttle.HeldByFreeze })
		r.enqueue(9, asynq.MaxRetry(0))
		r.eventually("all put off", func() bool { return r.queue().Scheduled == 10 })
		assert.Empty(t, all.ran())
		r.open()
		all.wait(t, 10)
		r.allEnd()
		assert.Zero(t, r.queue().FailedTotal)
	})
}

// Law 10: when Redis can not be asked, nothing starts. The task stays here, for asynq
// could not be told, either; it runs when Redis is back, or is given back at no charge.
func TestNothingStartsWithoutRedis(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then func(*worker.Middleware, *throttletest.Proxy)
		want int
	}{
		"until it is back":       {func(_ *worker.Middleware, way *throttletest.Proxy) { way.Mend() }, 1},
		"until the process ends": {func(m *worker.Middleware, _ *throttletest.Proxy) { m.Drain() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := throttletest.Embedded(t)
			way := throttletest.NewProxy(t, server.Addr())
			way.Cut()
			defer way.Mend()
			client := redis.NewClient(&redis.Options{Addr: way.Addr(), MaxRetries: -1})
			defer client.Close()
			limiter, err := throttle.New(client, newTestServer(t, server, policy.Policy{Limits: perSecond(1, 1)}).config.Policies)
			require.NoError(t, err)
			log, logs := observer.New(zap.WarnLevel)
			middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter, Logger: zap.New(log)})
			require.NoError(t, err)
			defer middleware.Close()

			runs, ended := newJournal(), make(chan error, 1)
			go func() { ended <- middleware.Wrap(runs).ProcessTask(t.Context(), asynq.NewTask("call", nil)) }()
			require.Eventually(t, func() bool { return logs.FilterMessageSnippet("could not ask Redis").Len() > 0 },
				patience, time.Millisecond)
			assert.Empty(t, runs.ran())
			assert.Empty(t, ended)

			test.then(middleware, way)
			err = <-ended
			assert.Len(t, runs.ran(), test.want)
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
