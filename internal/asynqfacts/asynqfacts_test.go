package asynqfacts_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// patience is how long to wait for what must happen; it costs nothing when all is well.
const patience = 100 * time.Second

// plain is asynq without anything of ours, on the queue "default".
type plain struct {
	t         *testing.T
	redis     redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
}

func newPlain(t *testing.T, client redis.UniversalClient) *plain {
	return &plain{
		t: t, redis: client,
		client: asynq.NewClientFromRedisClient(client), inspector: asynq.NewInspectorFromRedisClient(client),
	}
}

func onEachServer(t *testing.T, test func(t *testing.T, p *plain)) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) { test(t, newPlain(t, srv.Client())) })
}

// inVirtualTime runs a test of how long asynq takes, by a clock that goes on only when
// everybody waits.
func inVirtualTime(t *testing.T, test func(t *testing.T, p *plain)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		client := redis.NewClient(&redis.Options{
			Addr:   "127.0.0.1:0", // a name would be looked up
			Dialer: func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		})
		t.Cleanup(func() {
			assert.NoError(t, client.Close())
			server.Close()
		})
		test(t, newPlain(t, client))
	})
}

// add enqueues a task of type "task" with that payload, and returns its ID.
func (p *plain) add(payload string, options ...asynq.Option) (id string) {
	p.t.Helper()
	info, err := p.client.Enqueue(asynq.NewTask("task", []byte(payload)), options...)
	require.NoError(p.t, err)
	return info.ID
}

// serve runs a server, until the returned function is called.
func (p *plain) serve(config asynq.Config, handler asynq.HandlerFunc) (server *asynq.Server, stop func()) {
	p.t.Helper()
	config.LogLevel = asynq.FatalLevel
	server = asynq.NewServerFromRedisClient(p.redis, config)
	require.NoError(p.t, server.Start(handler))
	stop = sync.OnceFunc(server.Shutdown)
	p.t.Cleanup(stop)
	return server, stop
}

// soon is a Config by which a server finds tasks soon.
func soon(concurrency int) asynq.Config {
	return asynq.Config{Concurrency: concurrency, TaskCheckInterval: 10 * time.Millisecond}
}

func (p *plain) info(id string) *asynq.TaskInfo {
	p.t.Helper()
	info, err := p.inspector.GetTaskInfo("default", id)
	require.NoError(p.t, err)
	return info
}

// reaches waits until a task is in that state, and returns what asynq tells of it.
func (p *plain) reaches(id string, state asynq.TaskState) *asynq.TaskInfo {
	p.t.Helper()
	p.eventually(state.String(), func() bool {
		info, err := p.inspector.GetTaskInfo("default", id)
		return err == nil && info.State == state
	})
	return p.info(id)
}

func (p *plain) eventually(what string, condition func() bool) {
	p.t.Helper()
	require.Eventually(p.t, condition, patience, 5*time.Millisecond, what)
}

// order records which tasks ran.
type order struct {
	mu  sync.Mutex
	ran []string
}

func (o *order) ProcessTask(_ context.Context, task *asynq.Task) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ran = append(o.ran, string(task.Payload()))
	return nil
}

func (o *order) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.ran)
}

// RunTask makes a task that waits pending, and one that is laid aside, too; of others it
// tells in texts why not.
func TestRunTask(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		started, end := make(chan struct{}), make(chan struct{})
		_, stop := p.serve(soon(10), func(_ context.Context, task *asynq.Task) error {
			switch string(task.Payload()) {
			case "active":
				close(started)
				<-end
			case "retry":
				return errors.New("again")
			case "archived":
				return asynq.SkipRetry
			}
			return nil
		})
		active, later := p.add("active"), p.add("scheduled", asynq.ProcessIn(time.Hour))
		retry, archived := p.add("retry"), p.add("archived")
		done, completed := p.add("done"), p.add("completed", asynq.Retention(time.Hour))
		<-started
		waiting := []*asynq.TaskInfo{
			p.reaches(later, asynq.TaskStateScheduled), p.reaches(retry, asynq.TaskStateRetry),
			p.reaches(archived, asynq.TaskStateArchived), p.reaches(completed, asynq.TaskStateCompleted),
		}
		p.eventually("one is done", func() bool {
			_, err := p.inspector.GetTaskInfo("default", done)
			return asynqfacts.IsGone(err)
		})
		is := func(err error) []bool {
			return []bool{asynqfacts.IsRunning(err), asynqfacts.IsPending(err), asynqfacts.IsGone(err)}
		}
		assert.Equal(t, []bool{true, false, false}, is(p.inspector.RunTask("default", active)), "active")
		assert.Equal(t, []bool{false, false, true}, is(p.inspector.RunTask("default", done)), "done")
		assert.Equal(t, []bool{false, false, true}, is(p.inspector.RunTask("nowhere", done)), "no such queue")
		close(end)
		stop()
		for _, task := range waiting {
			isAside := task.State == asynq.TaskStateArchived || task.State == asynq.TaskStateCompleted
			assert.Equal(t, isAside, asynqfacts.IsLaidAside(task), task.State)
			err := p.inspector.RunTask("default", task.ID)
			require.NoError(t, err, task.State)
			assert.Equal(t, []bool{false, false, false}, is(err), task.State)
			assert.Equal(t, asynq.TaskStatePending, p.info(task.ID).State, task.State)
			assert.Equal(t, []bool{false, true, false}, is(p.inspector.RunTask("default", task.ID)), "pending")
		}
	})
}

// A woken task comes behind those that are pending. One that a server puts back when its
// ShutdownTimeout is over comes before them, with no retry spent; nobody tells its handler.
func TestPlacesInTheQueue(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		late := p.add("woken", asynq.ProcessIn(time.Hour))
		putBack := p.add("put back")
		p.add("pending")
		require.NoError(t, p.inspector.RunTask("default", late))

		contexts, end, ended := make(chan context.Context), make(chan struct{}), make(chan struct{})
		config := soon(1)
		config.ShutdownTimeout = 50 * time.Millisecond
		server, stop := p.serve(config, func(ctx context.Context, _ *asynq.Task) error {
			defer close(ended)
			contexts <- ctx
			<-end
			return errors.New("too late to be heard")
		})
		ctx := <-contexts
		server.Stop()
		assert.NoError(t, ctx.Err(), "after Stop")
		stop()
		select {
		case <-ended:
			t.Error("the handler ended by itself")
		default:
		}
		close(end)
		<-ended
		info := p.info(putBack)
		assert.Equal(t, asynq.TaskStatePending, info.State)
		assert.Zero(t, info.Retried)
		assert.Empty(t, info.LastErr)

		ran := &order{}
		p.serve(soon(1), ran.ProcessTask)
		p.eventually("three ran", func() bool { return len(ran.all()) == 3 })
		assert.Equal(t, []string{"put back", "pending", "woken"}, ran.all())
	})
}

// An error from a last attempt archives the task, even one that IsFailure disowns. From
// another attempt that one spends no retry, though the task's state tells it. The
// ErrorHandler hears of all.
func TestErrorsThatAreNoFailures(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		failure, harmless := errors.New("failure"), errors.New("harmless")
		var heard atomic.Int64
		config := soon(1)
		config.IsFailure = func(err error) bool { return errors.Is(err, failure) }
		config.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { heard.Add(1) })
		p.serve(config, func(ctx context.Context, task *asynq.Task) error {
			retried, _ := asynq.GetRetryCount(ctx)
			isFirst := string(task.Payload()) == "fails first" && retried == 0
			assert.Equal(t, string(task.Payload()) != "has retries" && !isFirst, asynqfacts.IsLastAttempt(ctx))
			if isFirst {
				return failure
			}
			return harmless
		})
		none, left, used := p.add("", asynq.MaxRetry(0)), p.add("has retries", asynq.MaxRetry(1)), p.add("fails first", asynq.MaxRetry(1))
		assert.Equal(t, "harmless", p.reaches(none, asynq.TaskStateArchived).LastErr)
		info := p.reaches(left, asynq.TaskStateRetry)
		assert.Zero(t, info.Retried)
		assert.Equal(t, "harmless", info.LastErr)
		assert.Equal(t, 1, p.reaches(used, asynq.TaskStateRetry).Retried)
		require.NoError(t, p.inspector.RunTask("default", used))
		assert.Equal(t, 1, p.reaches(used, asynq.TaskStateArchived).Retried)
		assert.EqualValues(t, 4, heard.Load())
		queue, err := p.inspector.GetQueueInfo("default")
		require.NoError(t, err)
		assert.Equal(t, 1+2, queue.FailedTotal, "one that failed, and two that were archived")
		assert.False(t, asynqfacts.IsLastAttempt(t.Context()), "outside a server")
	})
}

// RevokeTask removes a task in silence, its ID and its uniqueness with it. So its handler
// can have it replaced, even on its last attempt.
func TestRevokedTasksAreGone(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		end := make(chan struct{})
		_, stop := p.serve(soon(1), func(context.Context, *asynq.Task) error {
			<-end
			return fmt.Errorf("wrapped: %w", asynq.RevokeTask)
		})
		again := func() error {
			_, err := p.client.Enqueue(asynq.NewTask("task", []byte("same")), asynq.TaskID("x"), asynq.Unique(time.Hour))
			return err
		}
		p.add("same", asynq.TaskID("x"), asynq.Unique(time.Hour), asynq.MaxRetry(0), asynq.Retention(time.Hour))
		p.reaches("x", asynq.TaskStateActive)
		require.ErrorIs(t, again(), asynq.ErrDuplicateTask)
		close(end)
		p.eventually("it can be enqueued again", func() bool { return again() == nil })
		stop()
		queue, err := p.inspector.GetQueueInfo("default")
		require.NoError(t, err)
		assert.Zero(t, queue.FailedTotal+queue.Archived+queue.Completed)
	})
}

// The time of a retry loses its fraction of a second.
func TestRetryTimesAreRoundedDown(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		const n, delay = 20, time.Hour
		asked := map[string]time.Time{}
		config := soon(1)
		config.RetryDelayFunc = func(_ int, _ error, task *asynq.Task) time.Duration {
			asked[string(task.Payload())] = time.Now()
			return delay
		}
		_, stop := p.serve(config, func(context.Context, *asynq.Task) error { return errors.New("again") })
		var latest [n]time.Time
		for i := range n {
			p.reaches(p.add(fmt.Sprint(i)), asynq.TaskStateRetry)
			latest[i] = time.Now().Add(delay)
		}
		stop()
		tasks, err := p.inspector.ListRetryTasks("default")
		require.NoError(t, err)
		require.Len(t, tasks, n)
		for _, task := range tasks {
			score, err := p.redis.ZScore(t.Context(), "asynq:{default}:retry", task.ID).Result()
			require.NoError(t, err)
			assert.InDelta(t, task.NextProcessAt.Unix(), score, 0, "what Redis has is whole, too")
			var number int
			_, err = fmt.Sscan(string(task.Payload), &number)
			require.NoError(t, err)
			earliest := asked[string(task.Payload)].Add(delay)
			assert.WithinRange(t, task.NextProcessAt, earliest.Truncate(time.Second), latest[number].Truncate(time.Second))
		}
	})
}

func TestToWholeSecond(t *testing.T) {
	t.Parallel()
	second := time.Unix(1_800_000_000, 0)
	for _, test := range []struct {
		now   time.Time
		delay time.Duration
		want  time.Duration
	}{
		{second, 0, 0},
		{second, -time.Second, 0},
		{second, time.Second, time.Second},
		{second, time.Millisecond, time.Second},
		{second.Add(300 * time.Millisecond), time.Millisecond, 700 * time.Millisecond},
		{second.Add(300 * time.Millisecond), 700 * time.Millisecond, 700 * time.Millisecond},
		{second.Add(999 * time.Millisecond), 2 * time.Millisecond, 1001 * time.Millisecond},
	} {
		got := asynqfacts.ToWholeSecond(test.now, test.delay)
		assert.Equal(t, test.want, got, "%v %v", test.now, test.delay)
		assert.GreaterOrEqual(t, test.now.Add(got).Unix(), test.now.Add(test.delay).Unix())
	}
}

// asynq's contexts tell whether a task may have a deadline: it has whole seconds then,
// also where its timeout ends before.
func TestContextsTellDeadlines(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		ran := &order{}
		p.serve(soon(10), func(ctx context.Context, task *asynq.Task) error {
			ends, _ := ctx.Deadline()
			assert.Equal(t, string(task.Payload()), fmt.Sprint(asynqfacts.MayBeDeadline(ends)))
			return ran.ProcessTask(ctx, task)
		})
		deadline := asynq.Deadline(time.Now().Add(time.Hour))
		for _, options := range [][]asynq.Option{{deadline}, {deadline, asynq.Timeout(time.Minute)}, {deadline, asynq.Timeout(2 * time.Hour)}} {
			p.add("true", options...)
		}
		for _, options := range [][]asynq.Option{nil, {asynq.Timeout(time.Minute)}} {
			p.add("false", options...)
		}
		p.eventually("all ran", func() bool { return len(ran.all()) == 5 })
	})
}

// asynq gives up on a handler that does not heed its context, but it runs on, beside the
// one that has its place.
func TestTimeoutsEndNoHandlers(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		started, end := make(chan struct{}, 2), make(chan struct{})
		var ended sync.WaitGroup
		ended.Add(2)
		_, stop := p.serve(soon(1), func(context.Context, *asynq.Task) error {
			defer ended.Done()
			started <- struct{}{}
			<-end
			return nil
		})
		first, second := p.add("", asynq.Timeout(time.Second)), p.add("")
		<-started
		<-started // with Concurrency 1
		info := p.reaches(first, asynq.TaskStateRetry)
		assert.Equal(t, context.DeadlineExceeded.Error(), info.LastErr)
		assert.Equal(t, 1, info.Retried)
		assert.Equal(t, asynq.TaskStateActive, p.info(second).State)
		close(end)
		ended.Wait()
		stop()
	})
}

// A task whose worker died spends a retry. On its last attempt it is archived with an
// error by which it can be told from others.
func TestTasksOfDeadWorkers(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		end := make(chan struct{})
		_, stop := p.serve(soon(2), func(context.Context, *asynq.Task) error {
			<-end
			return nil
		})
		last, other := p.add("", asynq.MaxRetry(0)), p.add("", asynq.MaxRetry(1))
		died := redis.Z{Score: float64(time.Now().Add(-time.Hour).Unix())}
		for _, id := range []string{last, other} {
			p.reaches(id, asynq.TaskStateActive)
			died.Member = id
			require.NoError(t, p.redis.ZAdd(t.Context(), "asynq:{default}:lease", died).Err())
		}
		p.serve(asynq.Config{}, (&order{}).ProcessTask)
		info := p.reaches(last, asynq.TaskStateArchived)
		assert.Equal(t, asynq.ErrLeaseExpired.Error(), info.LastErr)
		assert.False(t, asynqfacts.IsLaidAside(info))
		assert.Equal(t, 1, p.reaches(other, asynq.TaskStateRetry).Retried)
		close(end)
		stop()
	})
}

// What a task is can be read while it runs, but for whether it is unique. Only whole
// seconds are kept of what it was given.
func TestTaskInfo(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		deadline := time.Now().Add(time.Hour).Truncate(time.Second)
		headers := map[string]string{"tenant": "a"}
		id := ""
		infos := make(chan *asynq.TaskInfo, 1)
		task, err := p.client.Enqueue(asynq.NewTaskWithHeaders("task", []byte("payload"), headers), asynq.MaxRetry(3),
			asynq.Timeout(90*time.Second+time.Second/2), asynq.Deadline(deadline.Add(time.Second/2)), asynq.Retention(time.Hour+time.Second/2))
		require.NoError(t, err)
		id = task.ID
		p.serve(soon(1), func(context.Context, *asynq.Task) error {
			info, err := p.inspector.GetTaskInfo("default", id)
			infos <- info
			return err
		})
		info := <-infos
		require.NotNil(t, info)
		assert.Equal(t, "task payload", info.Type+" "+string(info.Payload))
		assert.Equal(t, headers, info.Headers)
		assert.Equal(t, 3, info.MaxRetry)
		assert.Equal(t, 90*time.Second, info.Timeout)
		assert.Equal(t, time.Hour, info.Retention)
		assert.WithinDuration(t, deadline, info.Deadline, 0)
		assert.False(t, asynqfacts.IsKept(90*time.Second+time.Second/2))
		assert.True(t, asynqfacts.IsKept(info.Timeout))
	})
}

// replies records what scripts reply.
type replies struct {
	mu   sync.Mutex
	last any
}

func (r *replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if script, ok := cmd.(*redis.Cmd); ok {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.last = script.Val()
		}
		return err
	}
}

// Enqueueing is one call of a script, whose reply tells what came of it. An ID that is not
// given is one that never comes again.
func TestEnqueueing(t *testing.T) {
	onEachServer(t, func(t *testing.T, p *plain) {
		heard := &replies{}
		p.redis.AddHook(heard)
		enqueue := func(options ...asynq.Option) error {
			_, err := p.client.Enqueue(asynq.NewTask("task", nil), options...)
			return err
		}
		for _, when := range []asynq.Option{asynq.ProcessIn(0), asynq.ProcessIn(time.Hour)} {
			queue := asynq.Queue(throttletest.UniqueName(t))
			require.NoError(t, enqueue(when, queue, asynq.TaskID("x")))
			assert.EqualValues(t, 1, heard.last)
			require.ErrorIs(t, enqueue(when, queue, asynq.TaskID("x")), asynq.ErrTaskIDConflict)
			assert.EqualValues(t, 0, heard.last)
			require.NoError(t, enqueue(when, queue, asynq.Unique(time.Hour)))
			require.ErrorIs(t, enqueue(when, queue, asynq.Unique(time.Hour)), asynq.ErrDuplicateTask)
			assert.Equal(t, asynqfacts.DuplicateReply, heard.last)
		}
		for range 100 {
			assert.True(t, asynqfacts.IsGeneratedID(p.add("")))
		}
		assert.False(t, asynqfacts.IsGeneratedID("daily-report"))
		info := p.info(p.add(""))
		assert.Equal(t, 25, info.MaxRetry)
		assert.Equal(t, 30*time.Minute, info.Timeout)
	})
}

// polls records when a server looks at its queues.
type polls struct {
	mu sync.Mutex
	at []time.Time
}

func (l *polls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *polls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *polls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); args[0] == "evalsha" && args[2] == 4 && args[3] == "asynq:{default}:pending" {
			l.mu.Lock()
			l.at = append(l.at, time.Now())
			l.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

// Without work a server looks at its queues every half to one and a half of its
// TaskCheckInterval, which is a second by default.
func TestPauses(t *testing.T) {
	for _, interval := range []time.Duration{0, 200 * time.Millisecond, 3 * time.Second} {
		t.Run(interval.String(), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, p *plain) {
				looks := &polls{}
				p.redis.AddHook(looks)
				_, stop := p.serve(asynq.Config{TaskCheckInterval: interval}, (&order{}).ProcessTask)
				time.Sleep(10 * time.Minute)
				stop()
				most := asynqfacts.LongestPause(interval)
				longest := time.Duration(0)
				require.Greater(t, len(looks.at), 100)
				for i := range looks.at[1:] {
					pause := looks.at[i+1].Sub(looks.at[i])
					assert.GreaterOrEqual(t, pause, most/3)
					longest = max(longest, pause)
				}
				assert.LessOrEqual(t, longest, most)
				assert.Greater(t, longest, most*9/10)
			})
		})
	}
}

// By default a server runs as many tasks at once as there are CPUs, and brings back those
// that are due every five seconds.
func TestDefaults(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, p *plain) {
		var running atomic.Int64
		end := make(chan struct{})
		for range asynqfacts.DefaultConcurrency() + 1 {
			p.add("")
		}
		_, stop := p.serve(asynq.Config{}, func(context.Context, *asynq.Task) error {
			running.Add(1)
			<-end
			return nil
		})
		time.Sleep(time.Minute)
		assert.EqualValues(t, asynqfacts.DefaultConcurrency(), running.Load())
		close(end)
		time.Sleep(time.Minute)
		before := running.Load()
		p.add("", asynq.ProcessIn(time.Second))
		time.Sleep(time.Second + 5*time.Second + asynqfacts.LongestPause(0))
		assert.Equal(t, before+1, running.Load())
		stop()
	})
}
