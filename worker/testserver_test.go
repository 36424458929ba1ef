package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// patience is how long to wait for what must happen; it costs nothing when all is well.
// It is less than the two minutes after which asynq, at the earliest, brings a parked task
// back by itself: what ran was woken.
const patience = 100 * time.Second

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

func newTestServer(t *testing.T, server *throttletest.Server, p policy.Policy) *testServer {
	t.Helper()
	p.Name = "api"
	policies := &policy.Config{
		Policies: []policy.Policy{p},
		Routes:   []policy.Route{{Task: "call", Policy: "api"}},
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
		Logger:       zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel)),
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

// enqueueFor enqueues n tasks, numbered, of these tenants in turn.
func (r *testServer) enqueueFor(n int, tenants ...string) {
	r.t.Helper()
	for i := range n {
		r.enqueueWith(map[string]string{"tenant": tenants[i%len(tenants)], "number": fmt.Sprintf("%04d", i)})
	}
}

// enqueueTo enqueues n tasks to a queue.
func (r *testServer) enqueueTo(queue string, n int) {
	r.t.Helper()
	for i := range n {
		r.add(asynq.NewTaskWithHeaders("call", nil, map[string]string{"tenant": queue, "number": fmt.Sprintf("%04d", i)}), asynq.Queue(queue))
	}
}

// freeze closes the policy until open, for as long as it takes to have tasks in line.
func (r *testServer) freeze() {
	r.t.Helper()
	require.NoError(r.t, r.limiter.Freeze(r.t.Context(), "api", 24*time.Hour))
}

// park runs a server that finds the policy frozen, and has n tasks in its line.
func (r *testServer) park(handler asynq.Handler, n int, tenants ...string) *worker.Server {
	r.t.Helper()
	r.freeze()
	r.enqueueFor(n, tenants...)
	server, _ := r.run(handler)
	r.parked(n)
	return server
}

// parked waits until asynq is to bring back n tasks later, and has no others.
func (r *testServer) parked(n int) {
	r.t.Helper()
	r.eventually("all parked", func() bool { queue := r.queue(); return queue.Retry == n && queue.Size == n })
}

// open ends a freeze, and returns since when that may be over: its limits were full then.
func (r *testServer) open() (opened time.Time) {
	r.t.Helper()
	opened = time.Now()
	require.NoError(r.t, r.limiter.Unfreeze(r.t.Context(), "api"))
	return opened
}

// serve runs a server with that handler until the returned function is called.
func (r *testServer) serve(handler asynq.HandlerFunc) (stop func()) {
	r.t.Helper()
	_, stop = r.run(handler)
	return stop
}

// run is serve for a test that needs the server.
func (r *testServer) run(handler asynq.Handler) (server *worker.Server, stop func()) {
	r.t.Helper()
	config := r.config
	config.Handler = handler
	server, err := worker.NewServer(config)
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			assert.NoError(r.t, err)
		case <-time.After(patience):
			assert.Fail(r.t, "the server does not end")
		}
	})
	r.t.Cleanup(stop)
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

// waiting are those, and the ones that it brings to workers now.
func (r *testServer) waiting() []*asynq.TaskInfo {
	r.t.Helper()
	tasks, err := r.inspector.ListPendingTasks("default", asynq.PageSize(1000))
	require.NoError(r.t, err)
	return append(tasks, r.retrying()...)
}

// lineKeys are those of the policy's waiting line, but for who leads it: none if nobody
// is in line.
func (r *testServer) lineKeys() []string {
	r.t.Helper()
	keys, err := r.limiter.Redis().Keys(r.t.Context(), "rm:{api}/line*").Result()
	require.NoError(r.t, err)
	return slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, "/leader") })
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
	require.Eventually(r.t, condition, patience, 10*time.Millisecond, what)
}

// allEnd waits until asynq has no task left.
func (r *testServer) allEnd() {
	r.t.Helper()
	r.eventually("an empty queue", func() bool { return r.queue().Size == 0 })
}

// totals are the sums of what was counted or measured, by the metrics' names, and by
// those and their labels' values.
func totals(t *testing.T, metrics prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	sums := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name, value := family.GetName(), metric.GetGauge().GetValue()+metric.GetCounter().GetValue()
			sums[name] += value
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			sums[name] = value
		}
	}
	return sums
}

// scenario is a test that says how long what it is about took, which is for
// TestProveHowSoon to judge.
type scenario func(*testing.T, *throttletest.Server) time.Duration

func (s scenario) onEachServer(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) { s(t, server) })
}

// took is how long after what is done here so many tasks had run.
func (j *journal) took(t *testing.T, n int, what func()) time.Duration {
	t.Helper()
	began := time.Now()
	what()
	j.wait(t, n)
	return time.Since(began)
}

// journal records what ran, when and in which order. It is a handler.
type journal struct {
	mu    sync.Mutex
	tasks []string // "tenant/number"
	times []time.Time
	grown chan struct{} // has something when it grew
}

func newJournal() *journal { return &journal{grown: make(chan struct{}, 1)} }

func (j *journal) ProcessTask(_ context.Context, task *asynq.Task) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tasks = append(j.tasks, task.Headers()["tenant"]+"/"+task.Headers()["number"])
	j.times = append(j.times, time.Now())
	select {
	case j.grown <- struct{}{}:
	default:
	}
	return nil
}

// ran is what did so far.
func (j *journal) ran() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.tasks)
}

// wait returns when n tasks ran.
func (j *journal) wait(t *testing.T, n int) {
	t.Helper()
	timeout := time.After(patience)
	for len(j.ran()) < n {
		select {
		case <-j.grown:
		case <-timeout:
			t.Fatalf("%d tasks ran, waited for %d", len(j.ran()), n)
		}
	}
}

func perSecond(n, burst int64) []policy.Limit {
	return []policy.Limit{{
		Name: "rate", Algorithm: policy.TokenBucket, Burst: burst,
		Rate: policy.Rate{Count: n, Period: time.Second},
	}}
}

func per(period time.Duration) []policy.Limit {
	return []policy.Limit{{
		Name: "rate", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 1, Period: period},
	}}
}
