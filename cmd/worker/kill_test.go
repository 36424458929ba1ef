package main

import (
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Law 4 after kill -9, with tasks in every stage: asked about, parked, woken, waiting
// for their slots, calling. Workers are killed again and again, each replaced. Every
// task is called, none is archived, and none is over the limit.
//
// Tasks that a killed process had taken are asynq's to bring back, which takes it some
// minutes: they are counted, each must still be there.
func TestKilledWorkersLoseNothing(t *testing.T) {
	t.Parallel()
	killWorkers(t, 300, false, 5, 60, 150)
}

// killWorkers kills one when tasks are in line, and one after so many calls each: by
// calls made, for a machine may be slow. Tasks that were taken are waited for, too, if
// they are to come back.
func killWorkers(t *testing.T, tasks int, comeBack bool, calls ...int) (s *testFleet, taken int) {
	t.Helper()
	const rate, concurrency = 100, 8
	s = newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 100/s, burst: 1}
    lane: tenant
`)
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
	if !comeBack {
		taken = (1 + len(calls)) * concurrency
	}
	s.awaitQueue("called, but for those that were taken", func(q *asynq.QueueInfo) bool {
		return q.Pending == 0 && q.Active+q.Retry <= taken && s.called()+taken >= tasks
	})
	s.noneLost()
	assert.LessOrEqual(t, s.burst(opens, rate), 1, "never over")
	return s, taken
}
