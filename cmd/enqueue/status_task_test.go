package main

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// A task that is parked is found, with its place and what holds it; so are the others.
func TestStatusOfATask(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		path := file(t, "policies.yaml", `
policies:
  api:
    limits: [{name: slow, algorithm: token_bucket, rate: 1/100h}]
    lane: tenant
    max_wait: 0s
routes: [{task: "call", policy: api}]
`)
		middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiterOn(t, srv, path)})
		require.NoError(t, err)
		server := asynq.NewServerFromRedisClient(srv.Client(), middleware.Configure(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel}))
		mux := asynq.NewServeMux()
		mux.Use(middleware.Wrap)
		mux.HandleFunc("call", func(_ context.Context, _ *asynq.Task) error { return nil })
		require.NoError(t, server.Start(mux))
		client := asynq.NewClientFromRedisClient(srv.Client())
		for _, id := range []string{"first", "second", "third"} {
			_, err := client.Enqueue(asynq.NewTaskWithHeaders("call", nil, map[string]string{"tenant": "acme"}), asynq.TaskID(id))
			require.NoError(t, err)
		}
		_, err = client.Enqueue(asynq.NewTask("other", nil), asynq.TaskID("free"), asynq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			info, err := inspector(srv).GetQueueInfo("default")
			return err == nil && info.Retry == 2
		}, patience, 10*time.Millisecond)
		server.Shutdown()
		require.NoError(t, middleware.Close())

		got := enqueue(t, "status", "-redis", srv.URI(), "-config", path, "third")
		assert.Equal(t, program.OK, got.code)
		assert.Regexp(t, `^task third of queue default: call, retry
  retries: 0 of 25
  policy: api; number 2 in line of lane acme, since \S+Z
  held by: slow; expected to start in 8d7h
  asked: 1 time
  last error: throttled: policy "api" is held by "slow"; .*
$`, got.out)

		var tasks []taskReport
		require.NoError(t, json.Unmarshal([]byte(enqueue(t, "status", "-json", "-redis", srv.URI(), "-config", path, "second").out), &tasks))
		require.Len(t, tasks, 1)
		require.NotNil(t, tasks[0].Line)
		assert.Equal(t, int64(1), tasks[0].Line.Position)

		assert.Contains(t, enqueue(t, "status", "-redis", srv.URI(), "-config", path, "free").out, "no policy governs it")
		assert.Contains(t, enqueue(t, "status", "-redis", srv.URI(), "-config", path, "nobody").err, `there is no task "nobody" in any queue`)
		assert.Contains(t, enqueue(t, "status", "-redis", srv.URI(), "third").err, "-config is missing")
	})
}
