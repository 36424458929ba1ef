package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// deferral is how long the first of deferTasks is deferred. For half an hour it is told as
// two days and two hours.
const deferral = 50*time.Hour + 30*time.Minute

// deferTasks runs asynq until n tasks have been deferred the way a worker does
// it, each for longer than the one before.
func deferTasks(t *testing.T, srv *throttletest.Server, n int) {
	t.Helper()
	client := asynq.NewClientFromRedisClient(srv.Client())
	for i := range n {
		_, err := client.Enqueue(asynq.NewTask("t", fmt.Appendf(nil, "%d", i+1)))
		require.NoError(t, err)
	}
	done := make(chan struct{}, n)
	worker := asynq.NewServerFromRedisClient(srv.Client(), asynq.Config{
		Concurrency: 1, TaskCheckInterval: 200 * time.Millisecond, LogLevel: asynq.FatalLevel,
		IsFailure: func(error) bool { return false },
		RetryDelayFunc: func(_ int, _ error, task *asynq.Task) time.Duration {
			var times int
			_, _ = fmt.Sscan(string(task.Payload()), &times)
			return time.Duration(times) * deferral
		},
		ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { done <- struct{}{} }),
	})
	require.NoError(t, worker.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		return &throttle.ThrottledError{Policy: "github", HeldBy: "hourly", Until: time.Now()}
	})))
	for range n {
		<-done
	}
	worker.Shutdown() // after this the last of them is written, too
}

func TestStatusOfQueues(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		got := enqueue(t, "status", "-redis", srv.URI())
		assert.Equal(t, result{program.OK, "There is no queue at " + srv.Addr() + " yet: nothing was ever enqueued.\n", ""}, got)

		before := time.Now()
		deferTasks(t, srv, 3)
		client := asynq.NewClientFromRedisClient(srv.Client())
		for _, opt := range []asynq.Option{asynq.Queue("default"), asynq.Queue("mail"), asynq.ProcessIn(time.Hour)} {
			_, err := client.Enqueue(asynq.NewTask("t", nil), opt)
			require.NoError(t, err)
		}
		require.NoError(t, inspector(srv).PauseQueue("mail"))

		got = enqueue(t, "status", "-redis", srv.URI())
		assert.Equal(t, program.OK, got.code, got.err)
		assert.Regexp(t, `^QUEUE          PENDING  ACTIVE  SCHEDULED  RETRY  ARCHIVED  DEFERRED  NEXT DEFERRED
default        1        0       1          3      0         3         in 2d2h
mail \(paused\)  1        0       0          0      0         0         -
$`, got.out)

		got = enqueue(t, "status", "-redis", srv.URI(), "-scan", "2")
		assert.Contains(t, got.out, "2+ ", "no more than that were looked at")

		got = enqueue(t, "status", "-redis", srv.URI(), "-json")
		var r report
		require.NoError(t, json.Unmarshal([]byte(got.out), &r))
		require.Len(t, r.Queues, 2)
		require.NotNil(t, r.Queues[0].NextDeferred)
		assert.WithinRange(t, *r.Queues[0].NextDeferred, before.Add(deferral-time.Second), time.Now().Add(deferral))
		r.Queues[0].NextDeferred = nil
		assert.Equal(t, []queueReport{
			{Queue: "default", Pending: 1, Scheduled: 1, Retry: 3, Deferred: 3},
			{Queue: "mail", Paused: true, Pending: 1},
		}, r.Queues)
		assert.Nil(t, r.Limits)
	})
}

// Tasks that failed are in retry, too; they are not deferred.
func TestStatusTellsFailedFromDeferred(t *testing.T) {
	t.Parallel()
	q := queueReport{}
	at := time.Now()
	q.count(&asynq.TaskInfo{LastErr: "connection refused", NextProcessAt: at})
	q.count(&asynq.TaskInfo{NextProcessAt: at})
	assert.Zero(t, q)
	until := &throttle.ThrottledError{Policy: "p", HeldBy: "l"}
	q.count(&asynq.TaskInfo{LastErr: until.Error(), NextProcessAt: at.Add(time.Second)})
	q.count(&asynq.TaskInfo{LastErr: until.Error(), NextProcessAt: at})
	assert.Equal(t, 2, q.Deferred)
	assert.WithinDuration(t, at, *q.NextDeferred, 0)
}

func TestStatusOfLimits(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		slow := strings.NewReplacer("10/s", "10/1h", "100/1h", "100/1000h") // nothing comes back meanwhile
		path := file(t, "policies.yaml", slow.Replace(policiesFile))
		limiter := limiterOn(t, srv, path)
		_, err := limiter.Reserve(t.Context(), throttle.Request{Policy: "github",
			Attributes: map[string]string{"installation": "42", "points": "30"}})
		require.NoError(t, err)
		require.NoError(t, limiter.Freeze(t.Context(), "github", deferral))
		before, err := srv.Client().Keys(t.Context(), "*").Result()
		require.NoError(t, err)

		got := enqueue(t, "status", "-redis", srv.URI(), "-config", path)
		assert.Equal(t, program.OK, got.code, got.err)
		assert.Regexp(t, `\n\nPOLICY  LIMIT   RATE`, got.out)
		assert.Regexp(t, `\ngithub  all     10/1h0m0s +all +10 +9 +\S.*frozen for 2d2h\n`, got.out)
		assert.Regexp(t, `\ngithub  hourly  100/1000h0m0s +each installation: pass -attr installation=VALUE to see one`, got.out)

		got = enqueue(t, "status", "-redis", srv.URI(), "-config", path, "-attr", "installation=42", "-attr", "points=1000", "-json")
		assert.Equal(t, program.OK, got.code, got.err)
		var r report
		require.NoError(t, json.Unmarshal([]byte(got.out), &r))
		require.Len(t, r.Limits, 2)
		hourly := r.Limits[1]
		assert.Equal(t, "42", hourly.Key)
		assert.Equal(t, int64(100), *hourly.Max)
		assert.Equal(t, int64(70), *hourly.Remaining)
		assert.Positive(t, *hourly.ResetAfter)
		require.NotNil(t, hourly.FrozenUntil)

		got = enqueue(t, "status", "-redis", srv.URI(), "-config", path, "-attr", "installation=43")
		assert.Regexp(t, `\ngithub  hourly  100/1000h0m0s +installation=43 +100 +100 +full`, got.out)

		after, err := srv.Client().Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		assert.ElementsMatch(t, before, after, "looking changes nothing")
	})
}

func TestStatusInterrupted(t *testing.T) {
	t.Parallel()
	q := queueReport{Queue: "default"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := q.countDeferred(ctx, nil, 5, 5)
	require.ErrorContains(t, err, "interrupted")
}
