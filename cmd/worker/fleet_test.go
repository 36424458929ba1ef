package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/httprequest"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// fleetTasks is how many tasks the fleet gets: five seconds' worth, or what the
// environment says.
func fleetTasks(t *testing.T) int {
	t.Helper()
	text := os.Getenv("RAMPMETER_FLEET_TASKS")
	if text == "" {
		return 1500
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "RAMPMETER_FLEET_TASKS")
	return n
}

// Two worker processes share 300 calls a second with a burst of 30, on a real
// Redis, judged by the upstream's own record: every task is called exactly once,
// never more at once than the burst and what the network may bunch up, and hardly
// any of the quota is left unused.
func TestTwoProcessesShareAQuota(t *testing.T) {
	redis := throttletest.Redis(t)
	upstream, err := throttletest.NewUpstream(throttletest.UpstreamConfig{})
	require.NoError(t, err)
	api := httptest.NewServer(upstream)
	t.Cleanup(api.Close)
	tasks := fleetTasks(t)

	client := asynq.NewClient(asynq.RedisClientOpt{Addr: redis.Addr()})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	for i := range tasks {
		enqueueCall(t, client, fmt.Sprintf("%s/%d", api.URL, i))
	}
	policies := writeFile(t, `
policies:
  api:
    limits:
      - name: calls
        algorithm: token_bucket
        rate: 300/s
        burst: 30
    max_wait: 5s
routes:
  - task: "http:request"
    policy: api
`)
	for range 2 {
		startWorker(t, "-config", policies, "-redis", redis.URI(), "-concurrency", "20", "-log-level", "warn")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(tasks)*time.Second/250)
	defer cancel()
	require.NoError(t, upstream.WaitCalls(ctx, tasks))

	called := map[string]int{}
	for _, call := range upstream.Calls() {
		called[call.URL]++
	}
	assert.Len(t, called, tasks, "every task is called")
	assert.Equal(t, tasks, upstream.Count(), "and none twice")
	burst := throttletest.MaxBurst(upstream.Arrivals(), 300, time.Second)
	assert.LessOrEqual(t, burst, 30+9, "3 % of a second's rate is the network's")
	used := throttletest.Used(upstream.Arrivals(), 30, 300, time.Second)
	assert.GreaterOrEqual(t, used, 0.98)
	t.Logf("%d tasks: most at once %d, quota used %.2f %%", tasks, burst, 100*used)
}

// SIGTERM while tasks wait: the process ends within its shutdown time, and every
// task is still there, none of them charged.
func TestTermDuringWaitsLosesNothing(t *testing.T) {
	redis := throttletest.Redis(t)
	opt := asynq.RedisClientOpt{Addr: redis.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	t.Cleanup(func() {
		assert.NoError(t, client.Close())
		assert.NoError(t, inspector.Close())
	})
	for i := range 10 {
		enqueueCall(t, client, "http://127.0.0.1:9/", asynq.MaxRetry(25*(i%2))) // half have no retry
	}
	policies := writeFile(t, `
policies:
  api:
    limits:
      - {name: calls, algorithm: token_bucket, rate: 10/s}
    max_wait: 1h
routes:
  - {task: "http:request", policy: api}
`)
	freeze(t, redis, policies, "api", 10*time.Minute) // all ten wait for its end
	worker := startWorker(t, "-config", policies, "-redis", redis.URI(), "-shutdown-timeout", "2s", "-log-level", "error")
	require.Eventually(t, func() bool {
		info, err := inspector.GetQueueInfo("default")
		return err == nil && info.Active == 10
	}, 20*time.Second, 20*time.Millisecond)

	began := time.Now()
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	require.NoError(t, worker.Wait(), "a clean exit")
	assert.Less(t, time.Since(began), 4*time.Second, "the shutdown time, and a moment")

	info, err := inspector.GetQueueInfo("default")
	require.NoError(t, err)
	assert.Equal(t, 10, info.Pending+info.Retry, "all are there: %+v", info)
	assert.Zero(t, info.Archived)
	assert.Zero(t, info.FailedTotal)
	retrying, err := inspector.ListRetryTasks("default")
	require.NoError(t, err)
	for _, task := range retrying {
		assert.Zero(t, task.Retried)
	}
}

// freeze closes a policy, as another process that met a 429 would.
func freeze(t *testing.T, redis *throttletest.Server, policiesFile, policy string, d time.Duration) {
	t.Helper()
	config, err := throttle.ReadFile(policiesFile)
	require.NoError(t, err)
	limiter, err := throttle.New(redis.Client(), config)
	require.NoError(t, err)
	require.NoError(t, limiter.Freeze(t.Context(), policy, d))
}

func enqueueCall(t *testing.T, client *asynq.Client, url string, options ...asynq.Option) {
	t.Helper()
	payload, err := httprequest.Payload{URL: url}.Encode()
	require.NoError(t, err)
	_, err = client.EnqueueContext(t.Context(), asynq.NewTask(httprequest.TaskType, payload), options...)
	require.NoError(t, err)
}

// startWorker starts the worker as a process, which ends with the test at the
// latest.
func startWorker(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := command(t, args...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its second call, if the test has waited already
	})
	return cmd
}
