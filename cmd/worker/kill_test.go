package main

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, fmt.Sprintf(`
    limits:
      - {name: calls, algorithm: token_bucket, rate: %d/s, burst: 1}
    lane: tenant
`, rate))
	s.enqueue(tasks, ofTenants(5))

	workers := []*exec.Cmd{s.work(concurrency), s.work(concurrency)}
	killed := 0
	// By calls made, for a machine may be slow: while tasks are discovered, and later.
	for _, calls := range []int{5, 40, 110, 200, 300, 420} {
		s.awaitCalls(calls, time.Minute)
		require.NoError(t, workers[0].Process.Kill())
		killed++
		workers = append(workers[1:], s.work(concurrency))
	}
	patience, taken := 0*time.Second, killed*concurrency
	if text := os.Getenv("RAMPMETER_KILL_PATIENCE"); text != "" {
		var err error
		patience, err = time.ParseDuration(text)
		require.NoError(t, err)
		taken = 0
	}
	s.awaitQueue("called, but for those that were taken", time.Minute+patience, func(q *asynq.QueueInfo) bool {
		return q.Pending == 0 && q.Active+q.Retry <= taken && len(s.called())+taken >= tasks
	})

	left := s.noneLost(tasks)
	arrivals := s.upstream.Arrivals()
	burst := throttletest.MaxBurst(arrivals, rate, time.Second)
	assert.LessOrEqual(t, burst, 1+9, "never over, but for what the network bunches up")
	pause := longestPause(arrivals[:min(len(arrivals), tasks-killed*concurrency)])
	assert.Less(t, pause, 5*time.Second, "taken over")
	t.Logf("%d workers killed: %d of %d called, %d with asynq, at most %d at once, longest pause %s",
		killed, len(s.called()), tasks, left, burst, pause.Round(time.Millisecond))
}
