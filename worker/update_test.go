package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// with returns the server's policies with another one for the tasks of a type.
func (r *testServer) with(taskType string, p policy.Policy) *policy.Config {
	before := r.limiter.Config()
	p.Name = taskType
	return &policy.Config{
		Policies: append([]policy.Policy{p}, before.Policies...),
		Routes:   append([]policy.Route{{Task: taskType, Policy: taskType}}, before.Routes...),
	}
}

// instead returns them with this one in the place of "api".
func (r *testServer) instead(p policy.Policy) *policy.Config {
	p.Name = "api"
	return &policy.Config{Policies: []policy.Policy{p}, Routes: r.limiter.Config().Routes}
}

// A policy that is added while a server runs is kept to, and its line is served.
func TestServerServesAddedPolicies(t *testing.T) { scenario(serveAddedPolicy).onEachServer(t) }

func serveAddedPolicy(t *testing.T, redis *throttletest.Server) time.Duration {
	r := newTestServer(t, redis, policy.Policy{Limits: perSecond(1000, 10)})
	ran := newJournal()
	server, _ := r.run(ran)
	const n, rate = 40, 40
	require.NoError(t, server.Update(r.with("new", policy.Policy{Limits: perSecond(rate, 1), MaxWait: -1})))
	began := time.Now()
	took := ran.took(t, n, func() {
		for range n {
			r.add(asynq.NewTask("new", nil))
		}
	})
	assert.LessOrEqual(t, throttletest.BurstSince(began, ran.times, rate, time.Second), 1)
	require.Error(t, server.Update(r.with("new", policy.Policy{Limits: perSecond(1, 1), Overload: policy.OverloadDegrade})))
	require.Error(t, server.Reload(), "there is no file")
	return took
}

// A task that waits in its worker asks again as soon as its policy has other numbers.
func TestServerUpdatesTasksThatWait(t *testing.T) { scenario(updateTaskThatWaits).onEachServer(t) }

func updateTaskThatWaits(t *testing.T, redis *throttletest.Server) time.Duration {
	limit := policy.Limit{Name: "log", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: 1, Period: 30 * time.Minute}}
	p := policy.Policy{Limits: []policy.Limit{limit}, MaxWait: time.Hour}
	r := newTestServer(t, redis, p)
	ran := newJournal()
	server, _ := r.run(ran)
	r.enqueue(1)
	ran.wait(t, 1) // before another has a slot, or a start that is late would find it in its way
	r.enqueue(1, asynq.Timeout(2*time.Hour))
	r.eventually("one waits", func() bool { return r.peek().RetryAfter() > 30*time.Minute })
	limit.Rate.Count = 2
	p.Limits = []policy.Limit{limit}
	return ran.took(t, 2, func() { require.NoError(t, server.Update(r.instead(p))) })
}

// The line of a policy that is removed is left at once, not at the times that asynq would
// bring its tasks back.
func TestTasksOfRemovedPoliciesRun(t *testing.T) { scenario(removePolicy).onEachServer(t) }

func removePolicy(t *testing.T, redis *throttletest.Server) time.Duration {
	r := newTestServer(t, redis, policy.Policy{Limits: per(time.Hour)})
	ran := newJournal()
	const n = 130 // more than one call of recall wakes
	server := r.park(ran, n, "a")
	none := &policy.Config{Policies: []policy.Policy{{Name: "other", Limits: per(time.Hour)}}}
	took := ran.took(t, n, func() { require.NoError(t, server.Update(none)) })
	r.allEnd()
	assert.Len(t, ran.ran(), n)
	return took
}

// Law 9 for tasks that a limit of their own holds back for hours: they are looked at anew.
func TestTasksHeldBackByTheirOwnLimits(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		own, faster := per(6*time.Hour), perSecond(100, 1)
		own[0].Per, faster[0].Per = "tenant", "tenant"
		r := newTestServer(t, redis, policy.Policy{Limits: own, Lane: "tenant", MaxWait: -1})
		ran := newJournal()
		server, _ := r.run(ran)
		r.enqueueFor(6, "a", "b", "c")
		r.eventually("three held back", func() bool {
			return r.limiter.Redis().ZCard(t.Context(), "rm:{api}/line:tenant/held").Val() == 3
		})
		require.NoError(t, server.Update(r.instead(policy.Policy{Limits: faster, Lane: "tenant", MaxWait: -1})))
		ran.wait(t, 6)
	})
}

// Tasks in line share by lanes, and weights, that they did not have when they came.
func TestLanesComeWhileTasksStandInLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		r := newTestServer(t, redis, policy.Policy{Limits: perSecond(60, 1), MaxWait: -1})
		metrics := prometheus.NewRegistry()
		r.config.Registerer = metrics
		ran := newJournal()
		const n = 60
		server := r.park(ran, n, "0", "1")
		policy := r.config.Policies.Policies[0]
		policy.Lane, policy.Weights = "tenant", map[string]int64{"1": 3}
		require.NoError(t, server.Update(r.instead(policy)))
		r.eventually("all in the line of now", func() bool { return totals(t, metrics)["rampmeter_deferred_total"] >= 2*n })
		r.parked(n)
		r.open()
		ran.wait(t, n)
		served := map[string]int{}
		for _, task := range ran.tasks[:n/2] {
			served[task[:1]]++
		}
		assert.Greater(t, served["1"], 2*served["0"], "by the weights of now: %v", served)
		r.allEnd()
		assert.Zero(t, r.queue().FailedTotal)
	})
}

// Tasks that are sent to another policy while they stand in line leave it in their turn,
// and are not woken again and again for not asking there.
func TestReroutedTasksAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		r := newTestServer(t, redis, policy.Policy{Limits: perSecond(50, 1), MaxWait: -1})
		metrics := prometheus.NewRegistry()
		r.config.Registerer = metrics
		ran := newJournal()
		const n = 40
		server := r.park(ran, n, "a")
		config := r.with("other", policy.Policy{Limits: per(time.Hour), MaxWait: -1})
		config.Routes = []policy.Route{{Task: "call", Policy: "other"}}
		require.NoError(t, server.Update(config))
		r.open()
		ran.wait(t, 1)
		r.eventually("in the other line", func() bool { return r.queue().Retry == n-1 && len(r.lineKeys()) == 0 })
		assert.LessOrEqual(t, totals(t, metrics)["rampmeter_deferred_total"], 3.0*n, "once in each line")
		assert.Len(t, ran.ran(), 1)
	})
}

// A task may be recalled between its park and asynq's retry of it, when asynq says that it is
// running: here in a middleware of the program around ours. It stands in no line by then, and
// is woken all the same as soon as asynq has it back.
func TestRecalledTaskThatIsStillRunning(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		r := newTestServer(t, redis, policy.Policy{Limits: per(24 * time.Hour), MaxWait: -1})
		_, err := r.limiter.Reserve(t.Context(), throttle.Request{Policy: "api"}) // which is all there is today
		require.NoError(t, err)
		middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: r.limiter, Logger: r.config.Logger})
		require.NoError(t, err)
		server := asynq.NewServer(r.redis, middleware.Configure(asynq.Config{Logger: r.config.Logger.Sugar(), ShutdownTimeout: time.Second}))
		ran := newJournal()
		inner, parked, goesOn := middleware.Wrap(ran), make(chan struct{}, 10), make(chan struct{})
		require.NoError(t, server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := inner.ProcessTask(ctx, task)
			if errors.As(err, new(*throttle.ThrottledError)) {
				parked <- struct{}{}
				<-goesOn
			}
			return err
		})))
		t.Cleanup(func() {
			server.Stop()
			middleware.Drain()
			server.Shutdown()
			assert.NoError(t, middleware.Close())
		})
		calls := redis.Client().Subscribe(t.Context(), "rm:{api}/call")
		defer calls.Close()
		_, err = calls.Receive(t.Context()) // it listens
		require.NoError(t, err)

		r.enqueueFor(1, "a")
		await(t, parked)
		require.NoError(t, middleware.Update(r.instead(policy.Policy{Limits: perSecond(50, 1), Lane: "tenant", MaxWait: -1})))
		await(t, calls.Channel()) // as for every task of which asynq says that it is running
		close(goesOn)
		ran.wait(t, 1)
		r.allEnd()
	})
}

func await[T any](t *testing.T, told <-chan T) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(patience):
		require.Fail(t, "nothing was told")
	}
}
