package producer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// work is what real workers did.
type work struct {
	mu       sync.Mutex
	ran      []string // task IDs, in the order of their starts
	attempts map[string]int
	grown    chan struct{} // has something when there is more
}

// start runs servers on the limiter's Redis, as processes would.
func (p *testProducer) start(servers, concurrency int) *work {
	p.t.Helper()
	w := &work{attempts: map[string]int{}, grown: make(chan struct{}, 1)}
	for range servers {
		limiter, err := throttle.New(p.srv.Client(), p.limiter.Config())
		require.NoError(p.t, err)
		middleware, err := worker.NewMiddleware(worker.MiddlewareConfig{Limiter: limiter})
		require.NoError(p.t, err)
		server := asynq.NewServer(connection(p.srv), middleware.Configure(asynq.Config{
			Concurrency: concurrency, LogLevel: asynq.FatalLevel, ShutdownTimeout: time.Second,
			DelayedTaskCheckInterval: 200 * time.Millisecond,
		}))
		require.NoError(p.t, server.Start(w.counting(middleware.Wrap(asynq.HandlerFunc(w.run)))))
		p.t.Cleanup(func() {
			server.Stop()
			middleware.Drain()
			server.Shutdown()
			assert.NoError(p.t, middleware.Close())
		})
	}
	return w
}

func (w *work) counting(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		w.mu.Lock()
		w.attempts[id]++
		w.mu.Unlock()
		return next.ProcessTask(ctx, task)
	})
}

func (w *work) run(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ran = append(w.ran, id)
	select {
	case w.grown <- struct{}{}:
	default:
	}
	return nil
}

// wait returns what ran when n tasks did.
func (w *work) wait(t *testing.T, n int) []string {
	t.Helper()
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		ran := slices.Clone(w.ran)
		w.mu.Unlock()
		if len(ran) >= n {
			return ran
		}
		select {
		case <-w.grown:
		case <-timeout:
			t.Fatalf("%d tasks ran, waited for %d", len(ran), n)
		}
	}
}

func (p *testProducer) queue() *asynq.QueueInfo {
	p.t.Helper()
	info, err := p.inspector.GetQueueInfo("default")
	require.NoError(p.t, err)
	return info
}

func (p *testProducer) eventually(what string, condition func() bool) {
	p.t.Helper()
	require.Eventually(p.t, condition, patience, 10*time.Millisecond, what)
}

// lineEnds waits until nobody is in line.
func (p *testProducer) lineEnds() {
	p.t.Helper()
	p.eventually("an empty line", func() bool { return p.srv.Client().Exists(p.t.Context(), "rm:{api}/lines").Val() == 0 })
}

// allEnds waits for the end of all tasks, and of the line.
func (p *testProducer) allEnds() {
	p.t.Helper()
	p.eventually("an empty queue", func() bool { return p.queue().Size == 0 })
	p.lineEnds()
	assert.Zero(p.t, p.queue().FailedTotal)
}

// runAll has asynq run the tasks now that are to come back by themselves later.
func (p *testProducer) runAll() {
	p.t.Helper()
	_, err := p.inspector.RunAllScheduledTasks("default")
	require.NoError(p.t, err)
}

func perSecond(n int64) policy.Policy {
	p := onePerMinute()
	p.Limits[0].Rate = policy.Rate{Count: n, Period: time.Second}
	return p
}

// enqueue enqueues n tasks of a tenant, whose IDs count on from `from`. It returns those
// that were parked.
func (p *testProducer) enqueue(tenant string, from, n int, options ...asynq.Option) (parked []*asynq.TaskInfo) {
	p.t.Helper()
	for i := range n {
		id := fmt.Sprintf("%s/%04d", tenant, from+i)
		info, err := p.Enqueue(p.t.Context(), call(tenant, options...), asynq.TaskID(id))
		require.NoError(p.t, err)
		if info.State == asynq.TaskStateScheduled {
			parked = append(parked, info)
		}
	}
	return parked
}

// newClosedProducer has the policy closed: nothing starts until open.
func newClosedProducer(t *testing.T, srv *throttletest.Server, policy policy.Policy) *testProducer {
	t.Helper()
	p := newTestProducer(t, srv, policy)
	require.NoError(t, p.limiter.Freeze(t.Context(), "api", time.Hour))
	return p
}

// park enqueues n tasks of a tenant, all of which are parked.
func (p *testProducer) park(tenant string, n int) []*asynq.TaskInfo {
	p.t.Helper()
	parked := p.enqueue(tenant, 0, n)
	require.Len(p.t, parked, n)
	return parked
}

func (p *testProducer) open() {
	p.t.Helper()
	require.NoError(p.t, p.limiter.Unfreeze(p.t.Context(), "api"))
}

// Laws 4, 5 and 7 with real workers: tasks that workers parked and tasks that their
// producer did are served in the order in which they joined; the latter in one attempt,
// even those that have no retry.
func TestParkedTasksRunOnceInOrder(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		// Several would run those that are woken together in any order; and whose slot is
		// two seconds away when it asks goes back into line, so all slots are nearer.
		p := newClosedProducer(t, srv, perSecond(100))
		w := p.start(1, 1)
		plain := asynq.NewClientFromRedisClient(p.limiter.Redis())
		const byWorkers, byProducer = 10, 20
		for i := range byWorkers {
			_, err := plain.Enqueue(call("a"), asynq.TaskID(fmt.Sprintf("a/%04d", i)))
			require.NoError(t, err)
		}
		p.eventually("parked", func() bool { return p.queue().Retry == byWorkers })
		parked := p.enqueue("a", byWorkers, byProducer/2)
		parked = append(parked, p.enqueue("a", byWorkers+byProducer/2, byProducer/2, asynq.MaxRetry(0))...)
		assert.Len(t, parked, byProducer)
		p.open()
		ran := w.wait(t, byWorkers+byProducer)
		p.allEnds()
		assert.Len(t, ran, byWorkers+byProducer, "each once")
		assert.IsIncreasing(t, ran)
		for _, info := range parked {
			assert.Equal(t, 1, w.attempts[info.ID], info.ID)
		}
	})
}

// Law 4: if all that is known of the line is lost, asynq brings back what a producer
// parked when its rescheduled time has come. Here the test does.
func TestParkedTasksOutliveTheirLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := newClosedProducer(t, srv, perSecond(100))
		w := p.start(2, 10)
		p.park("a", 20)
		keys := srv.Client().Keys(t.Context(), "rm:{api}/line*").Val()
		require.NoError(t, srv.Client().Del(t.Context(), keys...).Err())
		p.open()
		p.runAll()
		assert.Len(t, w.wait(t, 20), 20)
		p.allEnds()
	})
}

// A producer that dies when asynq has the task, but the line has not, has lost nothing:
// the task comes back by itself at the time that asynq has for it.
func TestParkingHalfDoneLosesNothing(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		began := time.Now()
		p := newClosedProducer(t, srv, perSecond(100))
		p.park("before", 1) // now Redis knows the scripts
		p.beforeCalls(func(call int64) error {
			if call%2 == 0 {
				return errors.New("the producer is dead")
			}
			return nil
		})
		parked := p.park("a", 10)
		p.beforeCalls(func(int64) error { return nil })
		for _, info := range parked {
			assert.Nil(t, p.where(info))
			// After the policy has opened, at the backstop of an hour, more or less rounded.
			assert.WithinRange(t, info.NextProcessAt, began.Add(time.Hour), time.Now().Add(90*time.Minute+time.Second))
		}
		p.open()
		w := p.start(2, 10)
		w.wait(t, 1)
		p.lineEnds()
		assert.Equal(t, 10, p.queue().Scheduled)
		p.runAll()
		assert.Len(t, w.wait(t, 11), 11)
		p.allEnds()
	})
}

// A task whose line empties while it is on its way into it is woken all the same, and not
// left to asynq, which has it for an hour later.
func TestJoiningALineThatHasEmptied(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := newClosedProducer(t, srv, perSecond(100))
		before := p.park("before", 1)[0] // now Redis knows the scripts
		p.beforeCalls(func(call int64) error {
			if call == 2 {
				p.open()
				p.ask("before", throttle.TaskName(before.Queue, before.ID)) // it starts
				_, err := p.limiter.Line("api").Wake(t.Context(), line.Waking{As: "test"})
				require.NoError(t, err)
				_, err = p.limiter.Line("api").Wake(t.Context(), line.Waking{As: "test", Leaves: true})
				require.NoError(t, err)
				p.lineEnds()
			}
			return nil
		})
		p.park("a", 1)
		w := p.start(2, 10)
		assert.Equal(t, []string{"a/0000"}, w.wait(t, 1))
		p.runAll()
		p.allEnds()
		assert.Equal(t, map[string]int{"before/0000": 1, "a/0000": 1}, w.attempts)
	})
}

// Tasks that a producer parked behind a concurrency limit get its slots, one after the
// other.
func TestParkedTasksGetSlots(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := newClosedProducer(t, srv, slots())
		p.park("a", 10)
		p.open()
		w := p.start(2, 10)
		assert.Len(t, w.wait(t, 10), 10)
		p.allEnds()
	})
}

// Tasks that somebody deletes or archives while they stand in line make way for those
// behind them, and stay as they are.
func TestParkedTasksThatGoLeaveTheLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := newClosedProducer(t, srv, perSecond(100))
		parked := p.park("a", 10)
		for _, info := range parked[:4] {
			require.NoError(t, p.inspector.DeleteTask("default", info.ID))
		}
		require.NoError(t, p.inspector.ArchiveTask("default", parked[4].ID))
		p.open()
		w := p.start(2, 10)
		ran := w.wait(t, 5)
		slices.Sort(ran) // of those that were woken together, any may be first
		p.lineEnds()
		assert.Equal(t, []string{"a/0005", "a/0006", "a/0007", "a/0008", "a/0009"}, ran)
		p.eventually("all but the archived one gone", func() bool { return p.queue().Size == 1 })
		assert.Equal(t, asynq.TaskStateArchived, p.stateOf(parked[4]).State)
	})
}

// A batch that comes while workers are at it: every task runs once.
func TestBatchIntoABusyLine(t *testing.T) {
	t.Parallel()
	batchIntoABusyLine(t, 150, 300)
}

// batchIntoABusyLine enqueues n tasks of three tenants at once, and returns how many
// attempts each of them took on the average.
func batchIntoABusyLine(t *testing.T, n int, rate int64) (attempts float64) {
	t.Helper()
	p := newTestProducer(t, throttletest.Redis(t), perSecond(rate))
	w := p.start(2, 10)
	summary, err := p.Batch(t.Context(), entries(n, "a", "b", "c"), producer.BatchConfig{})
	require.NoError(t, err)
	assert.Equal(t, n, summary.Enqueued)
	ran := w.wait(t, n)
	p.allEnds()
	assert.Len(t, ran, n)
	assert.Len(t, w.attempts, n)
	for _, made := range w.attempts {
		attempts += float64(made)
	}
	return attempts / float64(n)
}
