package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// with returns the server's policies with another one for the tasks of a type.
func (r *testServer) with(taskType string, policy throttle.Policy) *throttle.Config {
	before := r.limiter.Config()
	policy.Name = taskType
	return &throttle.Config{
		Policies: append([]throttle.Policy{policy}, before.Policies...),
		Routes:   append([]throttle.Route{{Task: taskType, Policy: taskType}}, before.Routes...),
	}
}

// A policy that is added while a server runs is kept to, and its line is served.
func TestServerServesAddedPolicies(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		r := newTestServer(t, redis, throttle.Policy{Limits: perSecond(1000, 10)})
		ran := newJournal()
		server, _ := r.run(ran)
		const n, rate = 60, 20
		require.NoError(t, server.Update(r.with("new", throttle.Policy{Limits: perSecond(rate, 1), MaxWait: -1})))
		for i := range n {
			r.add(asynq.NewTaskWithHeaders("new", nil, map[string]string{"number": fmt.Sprintf("%04d", i)}))
		}
		ran.wait(t, n)
		assert.LessOrEqual(t, throttletest.MaxBurst(ran.times, rate, time.Second), 6)
		assert.Less(t, ran.times[n-1].Sub(ran.times[0]), 6*time.Second, "woken, not only brought back by asynq")
		assert.LessOrEqual(t, outOfOrder(ran.tasks), n/3)
		require.Error(t, server.Update(r.with("new", throttle.Policy{Limits: perSecond(1, 1), Overload: throttle.OverloadDegrade})))
		require.Error(t, server.Reload(), "there is no file")
	})
}

// outOfOrder is how many came before one that should have come earlier.
func outOfOrder(tasks []string) (n int) {
	for i := 1; i < len(tasks); i++ {
		if tasks[i] < tasks[i-1] {
			n++
		}
	}
	return n
}

// A task that waits in its worker asks again as soon as its policy has other numbers.
func TestServerUpdatesTasksThatWait(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		log := func(n int64) throttle.Policy {
			limit := throttle.Limit{Name: "log", Algorithm: throttle.SlidingLog, Rate: throttle.Rate{Count: n, Period: 10 * time.Minute}}
			return throttle.Policy{Name: "api", Limits: []throttle.Limit{limit}, MaxWait: 20 * time.Minute}
		}
		r := newTestServer(t, redis, log(1))
		ran := newJournal()
		server, _ := r.run(ran)
		r.enqueue(1)
		ran.wait(t, 1)
		r.enqueue(1)
		r.eventually("one waits", func() bool {
			queue := r.queue()
			return queue.Active == 1 && queue.Completed == 0 && queue.Processed == 1
		})
		updated := time.Now()
		config := *r.limiter.Config()
		config.Policies = []throttle.Policy{log(2)}
		require.NoError(t, server.Update(&config))
		ran.wait(t, 2)
		assert.Less(t, ran.times[1].Sub(updated), time.Second)
	})
}

// parkAll enqueues tasks of a tenant for one after the other of so many groups, and waits
// until all but the first are in line.
func (r *testServer) parkAll(ran *journal, n, groups int) {
	r.t.Helper()
	for i := range n {
		r.enqueueWith(map[string]string{"tenant": fmt.Sprint(i % groups), "number": fmt.Sprintf("%04d", i)})
	}
	r.eventually("all but one in line", func() bool { return r.queue().Retry == n-1 })
	ran.wait(r.t, 1)
}

// The line of a policy that is removed is left at once, not at the times that asynq would
// bring its tasks back.
func TestTasksOfRemovedPoliciesRun(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		limit := throttle.Limit{Name: "log", Algorithm: throttle.SlidingLog, Rate: throttle.Rate{Count: 1, Period: time.Hour}}
		r := newTestServer(t, redis, throttle.Policy{Limits: []throttle.Limit{limit}})
		ran := newJournal()
		server, _ := r.run(ran)
		const n = 150
		r.parkAll(ran, n, 1)
		updated := time.Now()
		require.NoError(t, server.Update(&throttle.Config{Policies: []throttle.Policy{{Name: "other", Limits: perSecond(1, 1)}}}))
		ran.wait(t, n)
		assert.Less(t, ran.times[n-1].Sub(updated), 10*time.Second)
		assert.LessOrEqual(t, outOfOrder(ran.tasks), n/2)
	})
}

// Tasks in line share by lanes, and weights, that they did not have when they came.
func TestLanesComeWhileTasksStandInLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		slow := perSecond(1, 1)
		slow[0].Rate.Period = time.Hour
		r := newTestServer(t, redis, throttle.Policy{Limits: slow, MaxWait: -1})
		ran := newJournal()
		server, _ := r.run(ran)
		const n = 120
		r.parkAll(ran, n, 2)
		require.NoError(t, server.Update(&throttle.Config{
			Policies: []throttle.Policy{{Name: "api", Limits: perSecond(30, 1), Lane: "tenant", Weights: map[string]int64{"1": 3}, MaxWait: -1}},
			Routes:   r.limiter.Config().Routes,
		}))
		ran.wait(t, n)
		assert.Less(t, ran.times[n-1].Sub(ran.times[0]), 30*time.Second, "woken, not only brought back by asynq")
		served := map[string]int{} // behind those who found their tokens when they asked anew
		for _, task := range ran.tasks[n/3 : n*2/3] {
			served[task[:1]]++
		}
		assert.Greater(t, 2*served["1"], 3*served["0"], "by the weights of now: %v", served)
		assert.Zero(t, r.queue().Archived)
		assert.Zero(t, r.queue().Retry)
	})
}

// Tasks that are sent to another policy while they stand in line leave it in their turn,
// and are not woken again and again for not asking there.
func TestReroutedTasksAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		bucket := func(count int64, period time.Duration) []throttle.Limit {
			return []throttle.Limit{{Name: "rate", Algorithm: throttle.TokenBucket, Rate: throttle.Rate{Count: count, Period: period}, Burst: 1}}
		}
		r := newTestServer(t, redis, throttle.Policy{Limits: bucket(1, time.Hour), MaxWait: -1})
		metrics := prometheus.NewRegistry()
		r.config.Registerer = metrics
		ran := newJournal()
		server, _ := r.run(ran)
		const n = 40
		r.parkAll(ran, n, 1)
		require.NoError(t, server.Update(&throttle.Config{
			Policies: []throttle.Policy{{Name: "api", Limits: bucket(30, time.Second), MaxWait: -1}, {Name: "new", Limits: bucket(4, time.Second), MaxWait: -1}},
			Routes:   []throttle.Route{{Task: "call", Policy: "new"}},
		}))
		ran.wait(t, n)
		assert.LessOrEqual(t, totals(t, metrics)["rampmeter_deferred_total"], 2.2*n, "once in each line")
	})
}
