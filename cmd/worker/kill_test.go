package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/httprequest"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Law 4 after kill -9, with tasks in every stage: asked about, parked, woken, waiting
// for their slots, calling. Workers are killed again and again, each replaced. Every
// task is called, none is archived, none is over the limit, and whoever is left goes
// on with the line within five seconds.
//
// Tasks that a killed process had taken are asynq's to bring back, which takes it some
// minutes; RAMPMETER_KILL_PATIENCE=5m waits for them. Without it they are counted: each
// must still be there.
func TestKilledWorkersLoseNothing(t *testing.T) {
	const tasks, rate, concurrency = 800, 100, 8
	redis := throttletest.Redis(t)
	upstream, err := throttletest.NewUpstream(throttletest.UpstreamConfig{})
	require.NoError(t, err)
	api := httptest.NewServer(upstream)
	t.Cleanup(api.Close)
	opt := asynq.RedisClientOpt{Addr: redis.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	t.Cleanup(func() {
		assert.NoError(t, client.Close())
		assert.NoError(t, inspector.Close())
	})
	for i := range tasks {
		payload, err := httprequest.Payload{URL: fmt.Sprintf("%s/%d", api.URL, i)}.Encode()
		require.NoError(t, err)
		_, err = client.Enqueue(asynq.NewTaskWithHeaders(httprequest.TaskType, payload,
			map[string]string{"tenant": fmt.Sprint(i % 5)}))
		require.NoError(t, err)
	}
	policies := writeFile(t, fmt.Sprintf(`
policies:
  api:
    limits:
      - {name: calls, algorithm: token_bucket, rate: %d/s, burst: 1}
    lane: tenant
routes:
  - {task: "http:request", policy: api}
`, rate))
	start := func() *exec.Cmd {
		return startWorker(t, "-config", policies, "-redis", redis.URI(),
			"-concurrency", fmt.Sprint(concurrency), "-log-level", "error")
	}

	workers := []*exec.Cmd{start(), start()}
	killed := 0
	// By calls made, for a machine may be slow: while tasks are discovered, and later.
	for _, calls := range []int{5, 40, 110, 200, 300, 420} {
		waitForCalls(t, upstream, calls)
		require.NoError(t, workers[0].Process.Kill())
		killed++
		workers = append(workers[1:], start())
	}
	patience, lost := 0*time.Second, killed*concurrency
	if text := os.Getenv("RAMPMETER_KILL_PATIENCE"); text != "" {
		patience, err = time.ParseDuration(text)
		require.NoError(t, err)
		lost = 0
	}
	require.Eventually(t, func() bool {
		info, err := inspector.GetQueueInfo("default")
		return err == nil && info.Active+info.Retry+info.Pending <= lost && info.Pending == 0 && len(urls(upstream))+lost >= tasks
	}, time.Minute+patience, 50*time.Millisecond)

	info, err := inspector.GetQueueInfo("default")
	require.NoError(t, err)
	assert.Zero(t, info.Archived)
	assert.GreaterOrEqual(t, len(urls(upstream))+info.Active+info.Retry+info.Pending, tasks, "nobody is lost")
	burst := throttletest.MaxBurst(upstream.Arrivals(), rate, time.Second)
	assert.LessOrEqual(t, burst, 1+9, "never over, but for what the network bunches up")
	var longest time.Duration
	arrivals := upstream.Arrivals()
	for i := 1; i < min(len(arrivals), tasks-killed*concurrency); i++ {
		longest = max(longest, arrivals[i].Sub(arrivals[i-1]))
	}
	assert.Less(t, longest, 5*time.Second, "taken over")
	t.Logf("%d workers killed: %d of %d called, %d with asynq, at most %d at once, longest pause %s",
		killed, len(urls(upstream)), tasks, info.Active+info.Retry, burst, longest.Round(time.Millisecond))
}

func waitForCalls(t *testing.T, upstream *throttletest.Upstream, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, upstream.WaitCalls(ctx, n))
}

// urls are what was called, each once.
func urls(upstream *throttletest.Upstream) map[string]bool {
	called := map[string]bool{}
	for _, call := range upstream.Calls() {
		called[call.URL] = true
	}
	return called
}
