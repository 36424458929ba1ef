package producer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// lanes is a producer that parks tasks of type "call" under the policy "api", whose
// lanes are tenants, and what the tests look at beside it. No worker runs.
type lanes struct {
	*producer.Producer

	t         *testing.T
	srv       *throttletest.Server
	inspector *asynq.Inspector
	limiter   *throttle.Limiter
	asked     *asked
}

// onePerMinute lets a first task start, and no second one while a test runs.
func onePerMinute() throttle.Policy {
	return throttle.Policy{Lane: "tenant", MaxWait: -1, Limits: []throttle.Limit{{
		Name: "rate", Algorithm: throttle.TokenBucket, Rate: throttle.Rate{Count: 1, Period: time.Minute}, Burst: 1,
	}}}
}

func newLanes(t *testing.T, srv *throttletest.Server, policy throttle.Policy) *lanes {
	t.Helper()
	policy.Name = "api"
	config := &throttle.Config{
		Policies: []throttle.Policy{policy}, Routes: []throttle.Route{{Task: "call", Policy: "api"}},
	}
	client := redis.NewClient(srv.Options())
	asked := &asked{}
	client.AddHook(asked)
	limiter, err := throttle.New(client, config)
	require.NoError(t, err)
	asynqClient := asynq.NewClient(connection(srv))
	p, err := producer.FromConfig(producer.Config{Limiter: limiter, Client: asynqClient})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, p.Close())
		assert.NoError(t, asynqClient.Close())
		assert.NoError(t, client.Close())
	})
	return &lanes{Producer: p, t: t, srv: srv, inspector: inspectorOn(srv), limiter: limiter, asked: asked}
}

// asked counts the calls that the limiter makes, and lets a test come in between.
type asked struct {
	calls  atomic.Int64
	before atomic.Pointer[func(call int64) error] // may fail it
}

func (a *asked) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *asked) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *asked) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		call := a.calls.Add(1)
		if before := a.before.Load(); before != nil {
			if err := (*before)(call); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

// beforeCalls lets something happen before the limiter's calls, counted from now on.
func (l *lanes) beforeCalls(do func(call int64) error) {
	l.asked.calls.Store(0)
	l.asked.before.Store(&do)
}

// openLine makes a line in the lane a: of two tasks that asynq does not know, behind one
// that has started.
func (l *lanes) openLine() {
	l.t.Helper()
	for i := range 3 {
		_, err := l.limiter.Reserve(l.t.Context(), throttle.Request{
			Policy: "api", TaskID: fmt.Sprintf("default/before-%d", i), Park: true,
			Attributes: map[string]string{"tenant": "a"},
		})
		require.NoError(l.t, err)
	}
}

func call(tenant string, options ...asynq.Option) *asynq.Task {
	return asynq.NewTaskWithHeaders("call", []byte("payload"), map[string]string{"tenant": tenant}, options...)
}

// entries is a batch of n tasks of these tenants in turn, whose IDs count from 000 on.
func entries(n int, tenants ...string) io.Reader {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"type":"call","id":"%03d","attributes":{"tenant":%q}}`+"\n", i, tenants[i%len(tenants)])
	}
	return strings.NewReader(lines.String())
}

// where is where a task stands in line, or nil.
func (l *lanes) where(info *asynq.TaskInfo) *throttle.Standing {
	l.t.Helper()
	standing, err := l.limiter.Where(l.t.Context(), throttle.Request{
		Policy: "api", TaskID: throttle.TaskName(info.Queue, info.ID), Attributes: info.Headers,
	})
	require.NoError(l.t, err)
	return standing
}

// line is who stands in the lane a, one behind the other, as "/QUEUE/ID".
func (l *lanes) line() []string {
	l.t.Helper()
	members, err := l.srv.Client().ZRange(l.t.Context(), "rm:{api}/line:tenant/row:1:a,", 0, -1).Result()
	require.NoError(l.t, err)
	return members
}

// stateOf is what asynq has of a task.
func (l *lanes) stateOf(info *asynq.TaskInfo) *asynq.TaskInfo {
	l.t.Helper()
	now, err := l.inspector.GetTaskInfo(info.Queue, info.ID)
	require.NoError(l.t, err)
	return now
}

// A task that others are ahead of joins them, and asynq has it for later, as it was made.
// So does one whose slot is far; one that finds its token goes the plain way.
func TestTasksJoinTheirLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		l := newLanes(t, srv, onePerMinute())
		info, err := l.Enqueue(t.Context(), call("a"))
		require.NoError(t, err)
		assert.Equal(t, asynq.TaskStatePending, l.stateOf(info).State)
		assert.Nil(t, l.where(info))
		l.openLine()
		for i := range 3 {
			info, err := l.Enqueue(t.Context(), call("a", asynq.Queue("low/er"), asynq.MaxRetry(7),
				asynq.Timeout(time.Minute), asynq.Retention(time.Hour)))
			require.NoError(t, err)
			standing := l.where(info)
			require.NotNil(t, standing, "it is not in line")
			assert.Equal(t, int64(3+i), standing.Position)
			assert.False(t, standing.Woken)

			there := l.stateOf(info)
			assert.Equal(t, asynq.TaskStateScheduled, there.State)
			expected := time.Duration(3+i) * time.Minute // two or more minutes before it comes back by itself
			assert.WithinDuration(t, time.Now().Add(expected+max(expected/2, 2*time.Minute)), there.NextProcessAt, 3*time.Second)
			assert.Equal(t, map[string]string{"tenant": "a"}, there.Headers)
			assert.Equal(t, "payload", string(there.Payload))
			assert.Equal(t, "low/er", there.Queue)
			assert.Equal(t, 7, there.MaxRetry)
			assert.Equal(t, time.Minute, there.Timeout)
			assert.Equal(t, time.Hour, there.Retention)
			assert.Zero(t, there.Deadline)
		}
		for _, tenant := range []string{"b", "c"} {
			info, err := l.Enqueue(t.Context(), call(tenant))
			require.NoError(t, err)
			require.NotNil(t, l.where(info))
			assert.Equal(t, int64(1), l.where(info).Position)
		}
	})
}

// What is not for the line to decide goes the plain way, though there is one.
func TestTasksGoThePlainWay(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	deferring, rejecting := onePerMinute(), onePerMinute()
	deferring.MaxDefer, rejecting.Overload, rejecting.MaxDefer = hour, throttle.OverloadReject, hour
	for name, c := range map[string]struct {
		policy throttle.Policy
		task   *asynq.Task
		opts   []asynq.Option
		state  asynq.TaskState
		at     time.Duration
	}{
		"no policy":            {policy: onePerMinute(), task: asynq.NewTask("other", nil)},
		"for later":            {policy: onePerMinute(), task: call("a"), opts: []asynq.Option{asynq.ProcessIn(hour)}, state: asynq.TaskStateScheduled, at: hour},
		"made for later":       {policy: onePerMinute(), task: call("a", asynq.ProcessIn(hour)), state: asynq.TaskStateScheduled, at: hour},
		"of a group":           {policy: onePerMinute(), task: call("a", asynq.Group("g")), state: asynq.TaskStateAggregating},
		"with a deadline":      {policy: onePerMinute(), task: call("a", asynq.Deadline(time.Now().Add(hour)))},
		"unique":               {policy: onePerMinute(), task: call("a"), opts: []asynq.Option{asynq.Unique(hour)}},
		"made unique":          {policy: onePerMinute(), task: call("a", asynq.Unique(hour))},
		"under a max_defer":    {policy: deferring, task: call("a")},
		"under a strategy":     {policy: rejecting, task: call("a")},
		"lacking an attribute": {policy: perKey(), task: call("a")},
		"lacking a slot":       {policy: slots(), task: call("b")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLanes(t, throttletest.Embedded(t), c.policy)
			if c.policy.Limits[0].Per == "" {
				l.openLine()
			}
			info, err := l.Enqueue(t.Context(), c.task, c.opts...)
			require.NoError(t, err)
			state := c.state
			if state == 0 {
				state = asynq.TaskStatePending
			}
			if state != asynq.TaskStateAggregating { // which the Inspector tells by group
				assert.Equal(t, state, l.stateOf(info).State)
			}
			assert.Equal(t, state, info.State)
			if c.at > 0 {
				assert.WithinDuration(t, time.Now().Add(c.at), info.NextProcessAt, 3*time.Second)
			}
			standing, err := l.limiter.Where(t.Context(), throttle.Request{
				Policy: "api", TaskID: throttle.TaskName(info.Queue, info.ID),
				Attributes: map[string]string{"tenant": c.task.Headers()["tenant"], "key": "k"},
			})
			require.NoError(t, err)
			assert.Nil(t, standing)
		})
	}
}

// perKey has a limit that needs an attribute.
func perKey() throttle.Policy {
	policy := onePerMinute()
	policy.Limits[0].Per = "key"
	return policy
}

// slots has a limit of which nobody knows when it lets the next one start.
func slots() throttle.Policy {
	policy := onePerMinute()
	policy.Limits[0] = throttle.Limit{Name: "slots", Algorithm: throttle.Concurrency, Slots: 1}
	return policy
}

// A task that is refused leaves nothing in line, and does not move the one that is
// there.
func TestRefusedTasksDoNotJoin(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		l := newLanes(t, srv, onePerMinute())
		l.openLine()
		first, err := l.Enqueue(t.Context(), call("a", asynq.TaskID("mine")))
		require.NoError(t, err)
		before := l.where(first)
		_, err = l.Enqueue(t.Context(), call("a"), asynq.TaskID("mine"))
		require.ErrorIs(t, err, asynq.ErrTaskIDConflict)
		assert.Equal(t, before, l.where(first))

		plain, err := l.Enqueue(t.Context(), call("b", asynq.TaskID("other")))
		require.NoError(t, err)
		_, err = l.Enqueue(t.Context(), call("a", asynq.TaskID("other")))
		require.ErrorIs(t, err, asynq.ErrTaskIDConflict)
		plain.Headers = map[string]string{"tenant": "a"}
		assert.Nil(t, l.where(plain))

		_, err = l.Enqueue(t.Context(), call("a"), asynq.Unique(time.Hour))
		require.NoError(t, err)
		_, err = l.Enqueue(t.Context(), call("a"), asynq.Unique(time.Hour))
		require.ErrorIs(t, err, asynq.ErrDuplicateTask)
		assert.Len(t, l.line(), 3, "the two before, and mine")
	})
}

// A Redis that does not tell who is in line stops nobody.
func TestUnaskedLimitsDoNotStopProducers(t *testing.T) {
	t.Parallel()
	l := newLanes(t, throttletest.Embedded(t), onePerMinute())
	l.openLine()
	l.beforeCalls(func(int64) error { return errors.New("not now") })
	info, err := l.Enqueue(t.Context(), call("a"))
	require.NoError(t, err)
	assert.Equal(t, asynq.TaskStatePending, l.stateOf(info).State)
}

// A batch shares its calls, and keeps to the order of its lines.
func TestBatchJoinsTogether(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		l := newLanes(t, srv, onePerMinute())
		l.openLine()
		l.asked.calls.Store(0)
		const n = 400
		summary, err := l.Batch(t.Context(), entries(n, "a"), producer.BatchConfig{})
		require.NoError(t, err)
		assert.Equal(t, n, summary.Enqueued)
		assert.Less(t, l.asked.calls.Load(), int64(2*n*2/3), "calls are shared")
		members := l.line()[2:]
		require.Len(t, members, n)
		for i, member := range members {
			var id int
			_, err := fmt.Sscanf(member, "/default/%03d", &id)
			require.NoError(t, err)
			assert.InDelta(t, i, id, 200, "the order is about that of the file")
		}
	})
}

// A batch of one worker joins in the order of its lines.
func TestBatchOfOneWorkerJoinsInOrder(t *testing.T) {
	t.Parallel()
	l := newLanes(t, throttletest.Embedded(t), onePerMinute())
	l.openLine()
	_, err := l.Batch(t.Context(), entries(50, "a"), producer.BatchConfig{Workers: 1})
	require.NoError(t, err)
	members := l.line()[2:]
	assert.Len(t, members, 50)
	assert.IsIncreasing(t, members)
}

// A batch whose first try went through, though it was not heard of that, joins, too.
func TestBatchJoinsAfterItsOwnRetry(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	l := newLanes(t, srv, onePerMinute())
	l.openLine()
	twice := intercepted{connection(srv), func(_ string, enqueue func() error) error {
		if err := enqueue(); err != nil {
			return err
		}
		return enqueue()
	}}
	client := asynq.NewClient(twice)
	defer client.Close()
	p, err := producer.FromConfig(producer.Config{Limiter: l.limiter, Client: client})
	require.NoError(t, err)
	defer p.Close()
	line := `{"type":"call","payload":"#1#","attributes":{"tenant":"a"}}`
	summary, err := p.Batch(t.Context(), strings.NewReader(line), producer.BatchConfig{})
	require.NoError(t, err)
	assert.Equal(t, 1, summary.Enqueued)
	assert.Len(t, l.line(), 3)
}

// Concurrent producers of single tasks share calls, and every task has a place.
func TestProducersJoinTogether(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		l := newLanes(t, srv, onePerMinute())
		l.openLine()
		var producers sync.WaitGroup
		for range 50 {
			producers.Go(func() {
				_, err := l.Enqueue(t.Context(), call("a"))
				assert.NoError(t, err)
			})
		}
		producers.Wait()
		assert.Len(t, l.line(), 52)
		tasks, err := l.inspector.ListScheduledTasks("default", asynq.PageSize(100))
		require.NoError(t, err)
		require.Len(t, tasks, 50)
		for _, task := range tasks {
			assert.NotNil(t, l.where(task))
		}
	})
}

// The attributes may come from elsewhere than the headers.
func TestAttributesOfAFunction(t *testing.T) {
	t.Parallel()
	l := newLanes(t, throttletest.Embedded(t), onePerMinute())
	l.openLine()
	p, err := producer.FromConfig(producer.Config{
		Limiter:    l.limiter,
		Attributes: func(task *asynq.Task) map[string]string { return map[string]string{"tenant": string(task.Payload())} },
	})
	require.NoError(t, err)
	defer p.Close()
	_, err = p.Enqueue(t.Context(), asynq.NewTask("call", []byte("a")))
	require.NoError(t, err)
	assert.Len(t, l.line(), 3)
}

func TestFromConfigNeedsALimiter(t *testing.T) {
	t.Parallel()
	_, err := producer.FromConfig(producer.Config{})
	require.EqualError(t, err, "producer: Config.Limiter is required")
}
