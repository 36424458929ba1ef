package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// testFleet is an upstream, a Redis with tasks that call it, and worker processes that run
// them under one policy, "api".
type testFleet struct {
	*testing.T
	upstream  *throttletest.Upstream
	url       string // the upstream's
	redis     *throttletest.Server
	tasks     *producer.Producer
	inspector *asynq.Inspector
	policies  string // the file's path
	enqueued  int    // how many tasks
}

// newTestFleet sets the stage, with nobody on it yet: no task, and no worker. The policy is
// that of policies.
func newTestFleet(t *testing.T, redis *throttletest.Server, cfg throttletest.UpstreamConfig, policy string) *testFleet {
	t.Helper()
	upstream, err := throttletest.NewUpstream(cfg)
	require.NoError(t, err)
	api := httptest.NewServer(upstream)
	t.Cleanup(api.Close)
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: redis.Addr()})
	t.Cleanup(func() { assert.NoError(t, inspector.Close()) })
	return &testFleet{
		T: t, upstream: upstream, url: api.URL, redis: redis,
		tasks: producerOn(t, redis.Addr()), inspector: inspector, policies: writeFile(t, policies(policy)),
	}
}

// policies is what a policies file says that governs http:request by this policy.
func policies(policy string) string {
	return "policies:\n  api: " + policy + "\nroutes:\n  - {task: \"http:request\", policy: api}\n"
}

// bucket is a policy of one token bucket, which has more to it than that.
func bucket(rate, more string) string {
	return fmt.Sprintf("{limits: [{name: calls, algorithm: token_bucket, rate: %s}], %s}", rate, more)
}

// producerOn is a producer that knows no policies, and ends with the test.
func producerOn(t *testing.T, redis string) *producer.Producer {
	t.Helper()
	p, err := producer.New(asynq.RedisClientOpt{Addr: redis})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// kind tells what the i-th of some tasks is like.
type kind func(i int) (attributes map[string]string, options []asynq.Option)

func alike(int) (map[string]string, []asynq.Option) { return nil, nil }

// ofTenants are tasks of so many tenants, in turn.
func ofTenants(n int) kind {
	return func(i int) (map[string]string, []asynq.Option) {
		return map[string]string{"tenant": fmt.Sprint(i % n)}, nil
	}
}

// withRetries are tasks of which one after the other has so many retries.
func withRetries(n ...int) kind {
	return func(i int) (map[string]string, []asynq.Option) {
		return nil, []asynq.Option{asynq.MaxRetry(n[i%len(n)])}
	}
}

// enqueue enqueues n tasks. Each task's URL ends with its number.
func (s *testFleet) enqueue(n int, of kind) {
	s.Helper()
	for range n {
		attributes, options := of(s.enqueued)
		payload := httprequest.Payload{URL: fmt.Sprintf("%s/%d", s.url, s.enqueued)}
		_, err := s.tasks.HTTP(s.Context(), payload, attributes, options...)
		require.NoError(s, err)
		s.enqueued++
	}
}

// work starts a worker process of that concurrency.
func (s *testFleet) work(concurrency int, args ...string) *process {
	s.Helper()
	return startProcess(s.T, append([]string{
		"-config", s.policies, "-redis", s.redis.URI(), "-concurrency", fmt.Sprint(concurrency),
	}, args...)...)
}

// untilUp is for how long a policy is frozen until the workers are up.
const untilUp = 2 * time.Second

// freeze closes the policy, as another process that met a 429 would. It opens not before
// the time that is returned.
func (s *testFleet) freeze(d time.Duration) (opens time.Time) {
	s.Helper()
	config, err := policy.ReadFile(s.policies)
	require.NoError(s, err)
	limiter, err := throttle.New(s.redis.Client(), config)
	require.NoError(s, err)
	opens = time.Now().Add(d)
	require.NoError(s, limiter.Freeze(s.Context(), "api", d))
	return opens
}

// burst is the smallest bucket that would have let the calls pass, if it was full when the
// policy opened.
func (s *testFleet) burst(opened time.Time, rate int64) int {
	return throttletest.BurstSince(opened, s.upstream.Arrivals(), rate, time.Second)
}

// awaitCalls returns when so many calls have come.
func (s *testFleet) awaitCalls(n int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	require.NoError(s, s.upstream.WaitCalls(ctx, n))
}

// awaitQueue returns when asynq tells such numbers of its queue.
func (s *testFleet) awaitQueue(what string, such func(*asynq.QueueInfo) bool) {
	s.Helper()
	require.EventuallyWithT(s, func(c *assert.CollectT) {
		info, err := s.inspector.GetQueueInfo("default")
		require.NoError(c, err)
		assert.True(c, such(info), "%s: %d calls, %+v", what, s.upstream.Count(), info)
	}, patience, 20*time.Millisecond)
}

// awaitEnd returns when all tasks are done, and checks that each was, and none charged.
func (s *testFleet) awaitEnd() {
	s.Helper()
	s.awaitQueue("all are done", func(q *asynq.QueueInfo) bool { return q.Size == 0 })
	s.nothingCharged()
	assert.Equal(s, s.enqueued, s.called(), "every task is called")
	assert.Equal(s, s.enqueued, s.upstream.Accepted(), "and none twice")
}

// nothingCharged checks that no task failed, was archived or spent a retry.
func (s *testFleet) nothingCharged() {
	s.Helper()
	queue := s.queue()
	assert.Zero(s, queue.Archived)
	assert.Zero(s, queue.FailedTotal)
}

func (s *testFleet) queue() *asynq.QueueInfo {
	s.Helper()
	info, err := s.inspector.GetQueueInfo("default")
	require.NoError(s, err)
	return info
}

// awaitAllBut returns when all tasks are called, but for so many that were taken: by a
// worker that is gone, or one that could not tell asynq of their end.
func (s *testFleet) awaitAllBut(taken int) {
	s.Helper()
	s.awaitQueue("called, but for those that were taken", func(q *asynq.QueueInfo) bool {
		return q.Pending == 0 && q.Active+q.Retry <= taken && s.called()+taken >= s.enqueued
	})
	s.noneLost()
}

// noneLost checks that each task was called or is still to be.
func (s *testFleet) noneLost() {
	s.Helper()
	info := s.queue()
	assert.Zero(s, info.Archived)
	assert.GreaterOrEqual(s, s.called()+info.Active+info.Retry+info.Scheduled+info.Pending, s.enqueued, "nobody is lost")
}

// called is how many tasks were called, and not refused.
func (s *testFleet) called() int {
	called := map[string]bool{}
	for _, call := range s.accepted() {
		called[call.URL] = true
	}
	return len(called)
}

// accepted are the calls that were not refused.
func (s *testFleet) accepted() []throttletest.Call {
	return slices.DeleteFunc(s.upstream.Calls(), func(c throttletest.Call) bool { return c.Status != http.StatusOK })
}
