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

// slotsFleet is one whose policy has so many slots, for calls that take that long.
func slotsFleet(t *testing.T, slots int, lease, takes time.Duration) *testFleet {
	t.Helper()
	return newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{Latency: takes}, fmt.Sprintf(`
    limits:
      - {name: at-once, algorithm: concurrency, slots: %d, lease: %s}
    lane: tenant
`, slots, lease))
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

// A worker is killed that has all slots, with others standing by: another worker gets the
// slots when their leases have run out, and loses nobody.
func TestKilledWorkersSlotsComeBack(t *testing.T) {
	t.Parallel()
	const slots, tasks, concurrency, takes = 4, 40, 8, 200 * time.Millisecond
	s := slotsFleet(t, slots, 2*time.Second, takes)
	s.enqueue(tasks, ofTenants(1))
	killed := s.work(concurrency)
	s.awaitCalls(slots)
	require.NoError(t, killed.Process.Kill())
	s.work(concurrency)
	s.awaitQueue("called, but for those that were taken", func(q *asynq.QueueInfo) bool {
		return q.Pending == 0 && q.Active+q.Retry <= concurrency && s.called()+concurrency >= tasks
	})
	s.noneLost()
}
