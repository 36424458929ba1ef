package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// testServer is a server for tasks of type "call" under the policy "api", and what the
// tests look at beside it.
type testServer struct {
	t         *testing.T
	redis     asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	limiter   *throttle.Limiter
	config    worker.ServerConfig
	reported  atomic.Int64 // errors the program's ErrorHandler heard of
}

func newTestServer(t *testing.T, server *throttletest.Server, policy throttle.Policy) *testServer {
	t.Helper()
	policy.Name = "api"
	policies := &throttle.Config{
		Policies: []throttle.Policy{policy},
		Routes:   []throttle.Route{{Task: "call", Policy: "api"}},
	}
	limiter, err := throttle.New(server.Client(), policies)
	require.NoError(t, err)
	opt := asynq.RedisClientOpt{Addr: server.Addr()}
	r := &testServer{
		t: t, redis: opt, limiter: limiter,
		client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt),
	}
	t.Cleanup(func() {
		assert.NoError(t, r.client.Close())
		assert.NoError(t, r.inspector.Close())
	})
	r.config = worker.ServerConfig{
		Redis: opt, Policies: policies, ShutdownTimeout: time.Second,
		ErrorHandler: asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { r.reported.Add(1) }),
	}
	return r
}

// enqueue enqueues n tasks like any other.
func (r *testServer) enqueue(n int, options ...asynq.Option) {
	r.t.Helper()
	for range n {
		r.add(asynq.NewTask("call", nil), options...)
	}
}

// enqueueWith enqueues a task with these headers.
func (r *testServer) enqueueWith(headers map[string]string) {
	r.t.Helper()
	r.add(asynq.NewTaskWithHeaders("call", nil, headers))
}

func (r *testServer) add(task *asynq.Task, options ...asynq.Option) {
	r.t.Helper()
	_, err := r.client.Enqueue(task, options...)
	require.NoError(r.t, err)
}

// serve runs a server with that handler until the returned function is called,
// which tells how long the shutdown took.
func (r *testServer) serve(handler asynq.HandlerFunc) (stop func() time.Duration) {
	r.t.Helper()
	_, stop = r.run(handler)
	return stop
}

// run is serve for a test that needs the server.
func (r *testServer) run(handler asynq.Handler) (server *worker.Server, stop func() time.Duration) {
	r.t.Helper()
	config := r.config
	config.Handler = handler
	server, err := worker.NewServer(config)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	stopped := false
	stop = func() time.Duration {
		if stopped {
			return 0
		}
		stopped = true
		began := time.Now()
		cancel()
		assert.NoError(r.t, <-ended)
		return time.Since(began)
	}
	r.t.Cleanup(func() { stop() })
	return server, stop
}

func (r *testServer) queue() *asynq.QueueInfo {
	r.t.Helper()
	info, err := r.inspector.GetQueueInfo("default")
	require.NoError(r.t, err)
	return info
}

// retrying are the tasks that asynq brings back later: those that were deferred, and
// those that failed.
func (r *testServer) retrying() []*asynq.TaskInfo {
	r.t.Helper()
	tasks, err := r.inspector.ListRetryTasks("default", asynq.PageSize(1000))
	require.NoError(r.t, err)
	return tasks
}

// archived returns the errors of archived tasks.
func (r *testServer) archived() (errs []string) {
	r.t.Helper()
	tasks, err := r.inspector.ListArchivedTasks("default", asynq.PageSize(1000))
	require.NoError(r.t, err)
	for _, task := range tasks {
		errs = append(errs, task.LastErr)
	}
	return errs
}

// eventually waits for what only asynq's own state can tell.
func (r *testServer) eventually(what string, condition func() bool) {
	r.t.Helper()
	require.Eventually(r.t, condition, 30*time.Second, 10*time.Millisecond, what)
}

// allEnd waits until asynq has no task left.
func (r *testServer) allEnd() {
	r.t.Helper()
	r.eventually("an empty queue", func() bool { return r.queue().Size == 0 })
}

// totals are the sums of what was counted or measured, by the metrics' names.
func totals(t *testing.T, metrics prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	sums := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			sums[family.GetName()] += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return sums
}

// counter is a handler that counts its runs and signals when there were enough.
type counter struct {
	runs atomic.Int64
	want int64
	done chan struct{}
}

func count(want int64) *counter { return &counter{want: want, done: make(chan struct{})} }

func (c *counter) ProcessTask(context.Context, *asynq.Task) error {
	if c.runs.Add(1) == c.want {
		close(c.done)
	}
	return nil
}

func (c *counter) wait(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%d runs, waited for %d", c.runs.Load(), c.want)
	}
}

func perSecond(n, burst int64) []throttle.Limit {
	return []throttle.Limit{{
		Name: "rate", Algorithm: throttle.TokenBucket, Burst: burst,
		Rate: throttle.Rate{Count: n, Period: time.Second},
	}}
}

func per(period time.Duration) []throttle.Limit {
	return []throttle.Limit{{
		Name: "rate", Algorithm: throttle.TokenBucket, Rate: throttle.Rate{Count: 1, Period: period},
	}}
}
