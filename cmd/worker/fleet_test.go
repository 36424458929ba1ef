package main

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
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
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, bucket("300/s, burst: 30", "max_wait: 5s"))
	opens := s.freeze(untilUp)
	for range 2 {
		s.work(20)
	}
	s.enqueue(tasks, alike)
	s.awaitEnd()
	assert.LessOrEqual(t, s.burst(opens, 300), 30, "never over")
	return s
}

// slotsFleet is one whose policy has so many slots, for calls that take that long.
func slotsFleet(t *testing.T, slots int, lease, takes time.Duration) *testFleet {
	t.Helper()
	return newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{Latency: takes}, fmt.Sprintf(
		`{limits: [{name: at-once, algorithm: concurrency, slots: %d, lease: %s}], lane: tenant}`, slots, lease))
}

// Two worker processes share slots: by the upstream's record every task is called once,
// and never are there more calls than slots.
func TestTwoProcessesShareSlots(t *testing.T) {
	t.Parallel()
	const slots, takes = 6, 50 * time.Millisecond
	s := slotsFleet(t, slots, 10*time.Minute, takes)
	s.enqueue(150, ofTenants(1))
	for range 2 {
		s.work(16)
	}
	s.awaitEnd()
	// Who has called is there for as long as a call takes, at least.
	assert.LessOrEqual(t, throttletest.MaxInAnyInterval(s.upstream.Arrivals(), takes), slots, "never over")
}

// SIGTERM while tasks wait: the process ends, although their turn is far, and every
// task is still there, none of them charged.
func TestTermDuringWaitsLosesNothing(t *testing.T) {
	t.Parallel()
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, bucket("10/s", "max_wait: 1h"))
	s.enqueue(10, withRetries(0, 25))
	s.freeze(10 * time.Minute) // all ten wait for its end
	worker := s.work(10, "-shutdown-timeout", "1s")
	s.awaitQueue("all wait", func(q *asynq.QueueInfo) bool { return q.Active == 10 })

	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, program.OK, worker.ends())
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

// Law 4 after kill -9, with tasks in every stage: asked about, parked, woken, waiting
// for their slots, calling. Workers are killed again and again, each replaced. Every
// task is called, none is archived, and none is over the limit.
//
// Tasks that a killed process had taken are asynq's to bring back, which takes it some
// minutes: they are counted, each must still be there.
func TestKilledWorkersLoseNothing(t *testing.T) {
	t.Parallel()
	killWorkers(t, 300, 5, 60, 150)
}

// killWorkers kills one when tasks are in line, and one after so many calls each: by
// calls made, for a machine may be slow. It returns how many tasks they may have taken.
func killWorkers(t *testing.T, tasks int, calls ...int) (s *testFleet, taken int) {
	t.Helper()
	const rate, concurrency = 100, 8
	s = newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, bucket("100/s, burst: 1", "lane: tenant"))
	opens := s.freeze(untilUp)
	s.enqueue(tasks, ofTenants(5))
	workers := []*process{s.work(concurrency), s.work(concurrency)}
	kill := func() {
		require.NoError(t, workers[0].Process.Kill())
		workers = append(workers[1:], s.work(concurrency))
	}
	s.awaitQueue("some are in line", func(q *asynq.QueueInfo) bool { return q.Retry > 20 || s.called() > 20 })
	kill()
	for _, n := range calls {
		s.awaitCalls(n)
		kill()
	}
	taken = (1 + len(calls)) * concurrency
	s.awaitAllBut(taken)
	assert.LessOrEqual(t, s.burst(opens, rate), 1, "never over")
	return s, taken
}

// A worker is killed that has all slots, with others standing by: another worker gets the
// slots when their leases have run out, and loses nobody.
func TestKilledWorkersSlotsComeBack(t *testing.T) {
	t.Parallel()
	const slots, concurrency, takes = 4, 8, 200 * time.Millisecond
	s := slotsFleet(t, slots, 2*time.Second, takes)
	s.enqueue(40, ofTenants(1))
	killed := s.work(concurrency)
	s.awaitCalls(slots)
	require.NoError(t, killed.Process.Kill())
	s.work(concurrency)
	s.awaitAllBut(concurrency)
}
