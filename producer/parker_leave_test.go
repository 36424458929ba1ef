package producer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// interceptable is a call that an intercept is told of.
func interceptable() *asynq.Task {
	return asynq.NewTaskWithHeaders("call", []byte("#1#"), map[string]string{"tenant": "a"})
}

// holdJoin has a task on its way into line, with those behind it waiting to go there
// together, until the returned function is called.
func (p *testProducer) holdJoin() (release func()) {
	p.t.Helper()
	enqueue := func() {
		_, err := p.Enqueue(p.t.Context(), call("a"))
		assert.NoError(p.t, err)
	}
	enqueue() // now Redis knows the scripts
	held, released := make(chan struct{}), make(chan struct{})
	p.beforeCalls(func(call int64) error {
		if call == 2 { // the first one looks ahead
			close(held)
			<-released
		}
		return nil
	})
	var first sync.WaitGroup
	first.Go(enqueue)
	<-held
	release = sync.OnceFunc(func() { close(released) })
	p.t.Cleanup(func() {
		release()
		first.Wait()
	})
	return release
}

// parkLeaving parks a task whose caller leaves while asynq is asked, and checks that it
// stands in line all the same.
func (p *testProducer) parkLeaving(ask func(leave func(), enqueue func() error) error) *asynq.TaskInfo {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	other := p.intercepted(func(_ string, enqueue func() error) error { return ask(leave, enqueue) })
	info, err := other.Enqueue(ctx, interceptable())
	require.NoError(p.t, err)
	assert.Equal(p.t, asynq.TaskStateScheduled, p.stateOf(info).State)
	require.NotNil(p.t, p.where(info), "it has lost its place")
	return info
}

// A caller that leaves before its task is parked has left nothing behind.
func TestCallersThatLeaveBeforeParking(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *testProducer) {
		ctx, leave := context.WithCancel(t.Context())
		p.beforeCalls(func(int64) error {
			leave()
			return nil
		})
		_, err := p.Enqueue(ctx, call("a", asynq.TaskID("mine")))
		require.ErrorIs(t, err, context.Canceled)
		_, err = p.inspector.GetTaskInfo("default", "mine")
		require.ErrorIs(t, err, asynq.ErrQueueNotFound)
		assert.Len(t, p.line(), 2, "the two before")
	})
}

// A caller that leaves while asynq takes its task has it parked all the same, even if
// the answer was lost and the client had to ask again.
func TestCallersThatLeaveWhileAsynqIsAsked(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *testProducer) {
		info := p.parkLeaving(func(leave func(), enqueue func() error) error {
			if err := enqueue(); err != nil {
				return err
			}
			leave()
			return enqueue()
		})
		assert.Equal(t, asynq.TaskStateScheduled, info.State)
		assert.Equal(t, p.stateOf(info).NextProcessAt.Unix(), info.NextProcessAt.Unix())
		assert.Len(t, p.line(), 3)
	})
}

// A caller that leaves while its task waits for others that are on their way into line
// does not take it out of their company: asynq has it for minutes later only.
func TestCallersThatLeaveWhileJoining(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *testProducer) {
		release := p.holdJoin()
		go func() {
			synctest.Wait()
			release()
		}()
		info := p.parkLeaving(func(leave func(), enqueue func() error) error {
			defer leave()
			return enqueue()
		})
		assert.Equal(t, int64(5), p.where(info).Position)
	})
}

// Nor does a caller wait for ever where nobody gets into line: its task comes by itself.
func TestJoiningIsGivenUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, p *testProducer) {
		p.holdJoin()
		began := time.Now()
		info, err := p.Enqueue(t.Context(), call("a"))
		require.NoError(t, err)
		assert.Equal(t, 5*time.Second, time.Since(began))
		assert.Equal(t, asynq.TaskStateScheduled, p.stateOf(info).State)
		assert.Nil(t, p.where(info))
	})
}
