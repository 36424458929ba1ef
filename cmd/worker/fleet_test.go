package main

import (
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Two worker processes share 300 calls a second with a burst of 30, on a real
// Redis, judged by the upstream's own record: every task is called exactly once,
// and never is one over.
func TestTwoProcessesShareAQuota(t *testing.T) {
	t.Parallel()
	shareAQuota(t, 600)
}

func shareAQuota(t *testing.T, tasks int) *testFleet {
	t.Helper()
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 300/s, burst: 30}
    max_wait: 5s
`)
	opens := s.freeze(untilUp)
	for range 2 {
		s.work(20)
	}
	s.enqueue(tasks, alike)
	s.awaitEnd()
	assert.LessOrEqual(t, s.burst(opens, 300), 30, "never over")
	return s
}

// SIGTERM while tasks wait: the process ends, although their turn is far, and every
// task is still there, none of them charged.
func TestTermDuringWaitsLosesNothing(t *testing.T) {
	t.Parallel()
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 10/s}
    max_wait: 1h
`)
	s.enqueue(10, withRetries(0, 25))
	s.freeze(10 * time.Minute) // all ten wait for its end
	worker := s.work(10, "-shutdown-timeout", "1s")
	s.awaitQueue("all wait", func(q *asynq.QueueInfo) bool { return q.Active == 10 })

	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, exitOK, worker.ends())

	queue := s.queue()
	assert.Equal(t, 10, queue.Pending+queue.Retry, "all are there: %+v", queue)
	s.nothingCharged()
	assert.Zero(t, s.upstream.Count())
	retrying, err := s.inspector.ListRetryTasks("default")
	require.NoError(t, err)
	for _, task := range retrying {
		assert.Zero(t, task.Retried)
	}
}
