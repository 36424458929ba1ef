package producer_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// patience is for what is sure to happen on any machine; it costs nothing when it does.
const patience = 2 * time.Minute

// testProducer is a producer that parks tasks of type "call" under the policy "api", whose
// lanes are tenants, and what the tests look at beside it. No worker runs.
type testProducer struct {
	*producer.Producer

	t         *testing.T
	srv       *throttletest.Server
	inspector *asynq.Inspector
	limiter   *throttle.Limiter
	asked     *asked
}

// onePerMinute lets a first task start, and no second one while a test runs.
func onePerMinute() policy.Policy {
	return policy.Policy{Lane: "tenant", MaxWait: -1, Limits: []policy.Limit{{
		Name: "rate", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 1, Period: time.Minute}, Burst: 1,
	}}}
}

func newTestProducer(t *testing.T, srv *throttletest.Server, terms policy.Policy) *testProducer {
	t.Helper()
	terms.Name = "api"
	config := &policy.Config{
		Policies: []policy.Policy{terms}, Routes: []policy.Route{{Task: "call", Policy: "api"}},
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
	return &testProducer{Producer: p, t: t, srv: srv, inspector: inspectorOn(srv), limiter: limiter, asked: asked}
}

// inBubble runs a test on each server whose time goes on only when everybody waits: what
// is asked of Redis takes none of it, however long it takes.
func inBubble(t *testing.T, test func(t *testing.T, p *testProducer)) {
	t.Helper()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		synctest.Test(t, func(t *testing.T) {
			p := newTestProducer(t, srv, onePerMinute())
			p.openLine()
			test(t, p)
		})
	})
}

// intercepted is another producer for the same lines, on asynq's side of which a test
// comes in between.
func (p *testProducer) intercepted(hook intercept) *producer.Producer {
	p.t.Helper()
	client := asynq.NewClient(intercepted{connection(p.srv), hook})
	other, err := producer.FromConfig(producer.Config{Limiter: p.limiter, Client: client})
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		assert.NoError(p.t, other.Close())
		assert.NoError(p.t, client.Close())
	})
	return other
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
func (p *testProducer) beforeCalls(do func(call int64) error) {
	p.asked.calls.Store(0)
	p.asked.before.Store(&do)
}

// openLine makes a line in the lane a: of two tasks that asynq does not know, behind one
// that has started.
func (p *testProducer) openLine() {
	p.t.Helper()
	for i := range 3 {
		p.ask("a", fmt.Sprintf("default/before-%d", i))
	}
}

// ask asks for the start of a task as a worker does: it is granted, or stands in line.
func (p *testProducer) ask(tenant, task string) {
	p.t.Helper()
	_, err := p.limiter.Reserve(p.t.Context(), throttle.Request{
		Policy: "api", TaskID: task, Park: true, Attributes: map[string]string{"tenant": tenant},
	})
	require.NoError(p.t, err)
}

func call(tenant string, options ...asynq.Option) *asynq.Task {
	return asynq.NewTaskWithHeaders("call", []byte("payload"), map[string]string{"tenant": tenant}, options...)
}

// entries is a batch of n tasks of these tenants in turn, whose IDs count from 0000 on.
func entries(n int, tenants ...string) io.Reader {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"type":"call","id":"%04d","attributes":{"tenant":%q}}`+"\n", i, tenants[i%len(tenants)])
	}
	return strings.NewReader(lines.String())
}

// where is where a task stands in line, or nil.
func (p *testProducer) where(info *asynq.TaskInfo) *throttle.Standing {
	p.t.Helper()
	standing, err := p.limiter.Where(p.t.Context(), throttle.Request{
		Policy: "api", TaskID: throttle.TaskName(info.Queue, info.ID), Attributes: info.Headers,
	})
	require.NoError(p.t, err)
	return standing
}

// line is who stands in the lane a, one behind the other, as "/QUEUE/ID".
func (p *testProducer) line() []string {
	p.t.Helper()
	members, err := p.srv.Client().ZRange(p.t.Context(), "rm:{api}/line:tenant/row:1:a,7:default,", 0, -1).Result()
	require.NoError(p.t, err)
	return members
}

// stateOf is what asynq has of a task.
func (p *testProducer) stateOf(info *asynq.TaskInfo) *asynq.TaskInfo {
	p.t.Helper()
	now, err := p.inspector.GetTaskInfo(info.Queue, info.ID)
	require.NoError(p.t, err)
	return now
}
