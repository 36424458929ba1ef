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

// outages are what may become of a Redis. Those that workers notice last until all have.
var outages = map[string]struct {
	begin   func(s *testFleet, redis *throttletest.Proxy)
	noticed bool
}{
	"cut":    {func(_ *testFleet, redis *throttletest.Proxy) { redis.Cut() }, true},
	"silent": {func(_ *testFleet, redis *throttletest.Proxy) { redis.Hold() }, true},
	"forgetful": {func(s *testFleet, _ *throttletest.Proxy) {
		require.NoError(s, s.redis.Client().ScriptFlush(s.Context()).Err())
	}, false},
}

// Law 10, in the middle of a backlog, for all workers at once: Redis ends
// connections, says nothing, or has forgotten its scripts. Nothing starts that may not;
// no task is lost, charged or archived; and the workers go on by themselves.
func TestRedisOutage(t *testing.T) {
	t.Parallel()
	for name := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outage(t, name, 150)
		})
	}
}

// outage returns for how long there was no call after an outage.
func outage(t *testing.T, name string, tasks int) time.Duration {
	t.Helper()
	const rate, concurrency, workers = 100, 8, 2
	// Not one call more in less than an hour, whatever time the outage takes.
	quota := tasks * 4 / 5
	s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, fmt.Sprintf(`
    lane: tenant
    limits:
      - {name: calls, algorithm: token_bucket, rate: %d/s, burst: 1}
      - {name: quota, algorithm: sliding_log, rate: %d/1h}`, rate, quota))
	opens := s.freeze(untilUp)
	s.enqueue(tasks, ofTenants(5))
	redis := throttletest.NewProxy(t, s.redis.Addr())
	var all [workers]*process
	for i := range all {
		all[i] = s.work(concurrency, "-redis", "redis://"+redis.Addr())
	}
	s.awaitCalls(tasks / 6)
	mended := time.Now()
	outages[name].begin(s, redis)
	untold := 0 // how many tasks may have ended without asynq being told
	if outages[name].noticed {
		untold = workers * concurrency
		for _, worker := range all {
			worker.log.await(1, "could not ask who is next in line", "could not wake a task", "could not take tasks out of line")
		}
		mended = time.Now()
	}
	redis.Mend()
	// asynq does not try again to be told that a task has ended: it brings it back
	// when its lease is over. Nor is a slot given again whose answer was lost.
	s.awaitQueue("the quota is used, but for those", func(q *asynq.QueueInfo) bool {
		return q.Pending+q.Scheduled == 0 && q.Active <= untold && s.upstream.Count() >= quota-untold
	})
	s.noneLost()
	s.nothingCharged()
	assert.LessOrEqual(t, s.upstream.Count(), quota, "never over")
	assert.LessOrEqual(t, s.burst(opens, rate), 1, "never over")
	for _, at := range s.upstream.Arrivals() {
		if at.After(mended) {
			return at.Sub(mended)
		}
	}
	return 0
}
