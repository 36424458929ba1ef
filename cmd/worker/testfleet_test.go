package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/httprequest"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
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

// policies is what a policies file says that governs http:request by a policy of these
// lines.
func policies(policy string) string {
	return "policies:\n  api:" + policy + "routes:\n  - {task: \"http:request\", policy: api}\n"
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

// enqueue enqueues n tasks, whose URLs end with their numbers.
func (s *testFleet) enqueue(n int, of kind) {
	s.Helper()
	for i := range n {
		attributes, options := of(i)
		payload := httprequest.Payload{URL: fmt.Sprintf("%s/%d", s.url, i)}
		_, err := s.tasks.HTTP(s.Context(), payload, attributes, options...)
		require.NoError(s, err)
	}
}

// work starts a worker process of that concurrency, which ends with the test at the
// latest.
func (s *testFleet) work(concurrency int, args ...string) *exec.Cmd {
	s.Helper()
	cmd := command(s.T, append([]string{
		"-config", s.policies, "-redis", s.redis.URI(), "-concurrency", fmt.Sprint(concurrency), "-log-level", "error",
	}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	require.NoError(s, cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its second call, if the test has waited already
	})
	return cmd
}

// awaitCalls returns when so many calls have come, and did not take longer than that.
func (s *testFleet) awaitCalls(n int, most time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), most)
	defer cancel()
	require.NoError(s, s.upstream.WaitCalls(ctx, n))
}

// awaitQueue returns when asynq tells such numbers of its queue, and did not take longer
// than that.
func (s *testFleet) awaitQueue(what string, most time.Duration, such func(*asynq.QueueInfo) bool) {
	s.Helper()
	require.Eventually(s, func() bool {
		info, err := s.inspector.GetQueueInfo("default")
		return err == nil && such(info)
	}, most, 20*time.Millisecond, what)
}

func (s *testFleet) queue() *asynq.QueueInfo {
	s.Helper()
	info, err := s.inspector.GetQueueInfo("default")
	require.NoError(s, err)
	return info
}

// called is how often each URL was called.
func (s *testFleet) called() map[string]int {
	called := map[string]int{}
	for _, call := range s.upstream.Calls() {
		called[call.URL]++
	}
	return called
}

// noneLost checks that each of n tasks was called or is still to be, and returns how
// many are.
func (s *testFleet) noneLost(n int) (left int) {
	s.Helper()
	info := s.queue()
	left = info.Active + info.Retry + info.Pending
	assert.Zero(s, info.Archived)
	assert.GreaterOrEqual(s, len(s.called())+left, n, "nobody is lost")
	return left
}

// longestPause is the longest time between two calls, one after the other.
func longestPause(arrivals []time.Time) (longest time.Duration) {
	for i := 1; i < len(arrivals); i++ {
		longest = max(longest, arrivals[i].Sub(arrivals[i-1]))
	}
	return longest
}
