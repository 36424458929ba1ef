package main

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
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
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 300/s, burst: 30}
    max_wait: 5s
`)
	tasks := fleetTasks(t)
	s.enqueue(tasks, alike)
	for range 2 {
		s.work(20)
	}
	s.awaitCalls(tasks, time.Minute+time.Duration(tasks)*time.Second/250)

	assert.Len(t, s.called(), tasks, "every task is called")
	assert.Equal(t, tasks, s.upstream.Count(), "and none twice")
	burst := throttletest.MaxBurst(s.upstream.Arrivals(), 300, time.Second)
	assert.LessOrEqual(t, burst, 30+9, "3 % of a second's rate is the network's")
	used := throttletest.Used(s.upstream.Arrivals(), 30, 300, time.Second)
	assert.GreaterOrEqual(t, used, 0.98)
	t.Logf("%d tasks: most at once %d, quota used %.2f %%", tasks, burst, 100*used)
}

// SIGTERM while tasks wait: the process ends within its shutdown time, and every
// task is still there, none of them charged.
func TestTermDuringWaitsLosesNothing(t *testing.T) {
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 10/s}
    max_wait: 1h
`)
	s.enqueue(10, withRetries(0, 25))
	s.freeze(10 * time.Minute) // all ten wait for its end
	worker := s.work(10, "-shutdown-timeout", "2s")
	s.awaitQueue("all wait", 20*time.Second, func(q *asynq.QueueInfo) bool { return q.Active == 10 })

	began := time.Now()
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	require.NoError(t, worker.Wait(), "a clean exit")
	assert.Less(t, time.Since(began), 4*time.Second, "the shutdown time, and a moment")

	queue := s.queue()
	assert.Equal(t, 10, queue.Pending+queue.Retry, "all are there: %+v", queue)
	assert.Zero(t, queue.Archived)
	assert.Zero(t, queue.FailedTotal)
	assert.Zero(t, s.upstream.Count())
	retrying, err := s.inspector.ListRetryTasks("default")
	require.NoError(t, err)
	for _, task := range retrying {
		assert.Zero(t, task.Retried)
	}
}

// freeze closes the policy, as another process that met a 429 would.
func (s *testFleet) freeze(d time.Duration) {
	s.Helper()
	config, err := throttle.ReadFile(s.policies)
	require.NoError(s, err)
	limiter, err := throttle.New(s.redis.Client(), config)
	require.NoError(s, err)
	require.NoError(s, limiter.Freeze(s.Context(), "api", d))
}
