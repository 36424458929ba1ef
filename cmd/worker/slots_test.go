package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Two worker processes share slots, judged by the upstream's record: hardly a slot is
// empty while tasks are in line, and never are there more calls than slots. Then one is
// killed, with all that calls and stands by there: the other goes on within seconds, with
// the slots of those who called as soon as their leases have run out.
func TestTwoProcessesShareSlots(t *testing.T) {
	const slots, tasks, concurrency, takes = 6, 500, 16, 150 * time.Millisecond
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{Latency: takes}, fmt.Sprintf(`
    limits:
      - {name: at-once, algorithm: concurrency, slots: %d, lease: 2s}
    lane: tenant
`, slots))
	s.enqueue(tasks, ofTenants(1))
	first := s.work(concurrency)
	s.work(concurrency)
	const early, late = 60, 300 // until all are parked, and when one is killed
	s.awaitCalls(late, time.Minute)
	require.NoError(t, first.Process.Kill())
	killed := time.Now()
	s.awaitQueue("called, but for those that were taken", 2*time.Minute, func(q *asynq.QueueInfo) bool {
		return q.Pending == 0 && q.Active+q.Retry <= concurrency && len(s.called())+concurrency >= tasks
	})

	arrivals := s.upstream.Arrivals()
	// Who has a slot calls for as long as all others.
	atOnce := throttletest.MaxInAnyInterval(arrivals, takes-time.Millisecond)
	assert.LessOrEqual(t, atOnce, slots, "never over")
	busy := float64(late-early) * takes.Seconds() / (slots * arrivals[late-1].Sub(arrivals[early-1]).Seconds())
	assert.Greater(t, busy, 0.85)
	since := arrivals[late-1 : min(len(arrivals), tasks-concurrency)] // from the last one before
	pause := longestPause(since)
	assert.Less(t, pause, 4*time.Second, "the slots go on")
	slow := 0 // starts while the slots of the killed are still theirs
	for _, arrived := range since[1:] {
		if arrived.Sub(killed) < 5*time.Second {
			slow++
		}
	}
	assert.Greater(t, slow, 30)
	s.noneLost(tasks)
	t.Logf("slots busy %.1f %%, %d at once, longest pause after a kill %s, %d calls in the 5 s after it",
		100*busy, atOnce, pause.Round(time.Millisecond), slow)
}
