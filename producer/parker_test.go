package producer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A task that others are ahead of joins them, and asynq has it for later, as it was made.
// So does one whose slot is far; one that finds its token goes the plain way.
func TestTasksJoinTheirLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := newTestProducer(t, srv, onePerMinute())
		info, err := p.Enqueue(t.Context(), call("a"))
		require.NoError(t, err)
		assert.Equal(t, asynq.TaskStatePending, p.stateOf(info).State)
		assert.Nil(t, p.where(info))
		p.openLine()
		for i := range 3 {
			before := time.Now()
			info, err := p.Enqueue(t.Context(), call("a", asynq.Queue("low/er"), asynq.MaxRetry(7),
				asynq.Timeout(time.Minute), asynq.Retention(time.Hour)))
			require.NoError(t, err)
			standing := p.where(info)
			require.NotNil(t, standing, "it is not in line")
			assert.Equal(t, int64(1+i), standing.Position, "of its queue")
			assert.False(t, standing.Woken)

			there := p.stateOf(info)
			assert.Equal(t, asynq.TaskStateScheduled, there.State)
			// It comes back by itself two or more minutes after it is to start, in whole seconds.
			back := (&policy.Policy{}).Backstop(standing.Expected.Sub(before), "")
			assert.WithinRange(t, there.NextProcessAt, standing.Expected.Add(2*time.Minute-time.Second), time.Now().Add(back+time.Second))
			assert.Equal(t, map[string]string{"tenant": "a"}, there.Headers)
			assert.Equal(t, "payload", string(there.Payload))
			assert.Equal(t, "low/er", there.Queue)
			assert.Equal(t, 7, there.MaxRetry)
			assert.Equal(t, time.Minute, there.Timeout)
			assert.Equal(t, time.Hour, there.Retention)
			assert.Zero(t, there.Deadline)
		}
		for _, tenant := range []string{"b", "c"} {
			info, err := p.Enqueue(t.Context(), call(tenant))
			require.NoError(t, err)
			require.NotNil(t, p.where(info))
			assert.Equal(t, int64(1), p.where(info).Position)
		}
	})
}

// What is not for the line to decide goes the plain way, though there is one.
func TestTasksGoThePlainWay(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	deferring, rejecting := onePerMinute(), onePerMinute()
	deferring.MaxDefer, rejecting.Overload, rejecting.MaxDefer = hour, policy.OverloadReject, hour
	for name, c := range map[string]struct {
		policy policy.Policy
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
			p := newTestProducer(t, throttletest.Embedded(t), c.policy)
			if c.policy.Limits[0].Per == "" {
				p.openLine()
			}
			before := time.Now()
			info, err := p.Enqueue(t.Context(), c.task, c.opts...)
			require.NoError(t, err)
			state := c.state
			if state == 0 {
				state = asynq.TaskStatePending
			}
			if state != asynq.TaskStateAggregating { // which the Inspector tells by group
				assert.Equal(t, state, p.stateOf(info).State)
			}
			assert.Equal(t, state, info.State)
			if c.at > 0 {
				assert.WithinRange(t, info.NextProcessAt, before.Add(c.at), time.Now().Add(c.at))
			}
			standing, err := p.limiter.Where(t.Context(), throttle.Request{
				Policy: "api", TaskID: throttle.TaskName(info.Queue, info.ID),
				Attributes: map[string]string{"tenant": c.task.Headers()["tenant"], "key": "k"},
			})
			require.NoError(t, err)
			assert.Nil(t, standing)
		})
	}
}

// perKey has a limit that needs an attribute.
func perKey() policy.Policy {
	policy := onePerMinute()
	policy.Limits[0].Per = "key"
	return policy
}

// slots has a limit of which nobody knows when it lets the next one start.
func slots() policy.Policy {
	p := onePerMinute()
	p.Limits[0] = policy.Limit{Name: "slots", Algorithm: policy.Concurrency, Slots: 1}
	return p
}

// A task that is refused leaves nothing in line, and does not move the one that is
// there.
func TestRefusedTasksDoNotJoin(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *testProducer) {
		first, err := p.Enqueue(t.Context(), call("a", asynq.TaskID("mine")))
		require.NoError(t, err)
		before := p.where(first)
		_, err = p.Enqueue(t.Context(), call("a"), asynq.TaskID("mine"))
		require.ErrorIs(t, err, asynq.ErrTaskIDConflict)
		assert.Equal(t, before, p.where(first))

		plain, err := p.Enqueue(t.Context(), call("b", asynq.TaskID("other")))
		require.NoError(t, err)
		_, err = p.Enqueue(t.Context(), call("a", asynq.TaskID("other")))
		require.ErrorIs(t, err, asynq.ErrTaskIDConflict)
		plain.Headers = map[string]string{"tenant": "a"}
		assert.Nil(t, p.where(plain))

		_, err = p.Enqueue(t.Context(), call("a"), asynq.Unique(time.Hour))
		require.NoError(t, err)
		_, err = p.Enqueue(t.Context(), call("a"), asynq.Unique(time.Hour))
		require.ErrorIs(t, err, asynq.ErrDuplicateTask)
		assert.Len(t, p.line(), 3, "the two before, and mine")
	})
}

// A Redis that does not tell who is in line stops nobody.
func TestUnaskedLimitsDoNotStopProducers(t *testing.T) {
	t.Parallel()
	p := newTestProducer(t, throttletest.Embedded(t), onePerMinute())
	p.openLine()
	p.beforeCalls(func(int64) error { return errors.New("not now") })
	info, err := p.Enqueue(t.Context(), call("a"))
	require.NoError(t, err)
	assert.Equal(t, asynq.TaskStatePending, p.stateOf(info).State)
}

func TestBatchJoinsTogether(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		order, _ := joinByBatch(t, srv, 100)
		assert.IsIncreasing(t, slices.Sorted(slices.Values(order)))
	})
}

// joinByBatch has n tasks of a batch parked. It returns the numbers of their lines as they
// stand one behind the other, and how many calls of the limiter it took.
func joinByBatch(t *testing.T, srv *throttletest.Server, n int) (order []int, calls int64) {
	t.Helper()
	p := newTestProducer(t, srv, onePerMinute())
	p.openLine()
	p.asked.calls.Store(0)
	summary, err := p.Batch(t.Context(), entries(n, "a"), producer.BatchConfig{})
	require.NoError(t, err)
	assert.Equal(t, n, summary.Enqueued)
	calls = p.asked.calls.Load()
	members := p.line()[2:]
	require.Len(t, members, n)
	for _, member := range members {
		var line int
		_, err := fmt.Sscanf(member, "/default/%d", &line)
		require.NoError(t, err)
		order = append(order, line)
	}
	return order, calls
}

// A batch of one worker joins in the order of its lines.
func TestBatchOfOneWorkerJoinsInOrder(t *testing.T) {
	t.Parallel()
	p := newTestProducer(t, throttletest.Embedded(t), onePerMinute())
	p.openLine()
	_, err := p.Batch(t.Context(), entries(50, "a"), producer.BatchConfig{Workers: 1})
	require.NoError(t, err)
	members := p.line()[2:]
	assert.Len(t, members, 50)
	assert.IsIncreasing(t, members)
}

// A batch whose first try went through, though it was not heard of that, joins, too.
func TestBatchJoinsAfterItsOwnRetry(t *testing.T) {
	t.Parallel()
	p := newTestProducer(t, throttletest.Embedded(t), onePerMinute())
	p.openLine()
	other := p.intercepted(func(_ string, enqueue func() error) error {
		if err := enqueue(); err != nil {
			return err
		}
		return enqueue()
	})
	line := `{"type":"call","payload":"#1#","attributes":{"tenant":"a"}}`
	summary, err := other.Batch(t.Context(), strings.NewReader(line), producer.BatchConfig{})
	require.NoError(t, err)
	assert.Equal(t, 1, summary.Enqueued)
	assert.Equal(t, 1, summary.Parked)
	assert.Len(t, p.line(), 3)
}

// Producers of single tasks who come while a call is under way share the next one, and
// every task has a place.
func TestProducersJoinTogether(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *testProducer) {
		release := p.holdJoin()
		var producers sync.WaitGroup
		for range 8 {
			producers.Go(func() {
				_, err := p.Enqueue(t.Context(), call("a"))
				assert.NoError(t, err)
			})
		}
		<-time.After(time.Second) // calls wait for company, but not as long
		synctest.Wait()
		before := p.asked.calls.Load()
		release()
		producers.Wait()
		synctest.Wait()
		assert.Equal(t, before+1, p.asked.calls.Load())
		assert.Len(t, p.line(), 12)
		tasks, err := p.inspector.ListScheduledTasks("default")
		require.NoError(t, err)
		require.Len(t, tasks, 10)
		for _, task := range tasks {
			assert.NotNil(t, p.where(task))
		}
	})
}

// The attributes may come from elsewhere than the headers.
func TestAttributesOfAFunction(t *testing.T) {
	t.Parallel()
	p := newTestProducer(t, throttletest.Embedded(t), onePerMinute())
	p.openLine()
	other, err := producer.FromConfig(producer.Config{
		Limiter:    p.limiter,
		Attributes: func(task *asynq.Task) map[string]string { return map[string]string{"tenant": string(task.Payload())} },
	})
	require.NoError(t, err)
	defer other.Close()
	_, err = other.Enqueue(t.Context(), asynq.NewTask("call", []byte("a")))
	require.NoError(t, err)
	assert.Len(t, p.line(), 3)
}

func TestFromConfigNeedsALimiter(t *testing.T) {
	t.Parallel()
	_, err := producer.FromConfig(producer.Config{})
	require.EqualError(t, err, "producer: Config.Limiter is required")
}
