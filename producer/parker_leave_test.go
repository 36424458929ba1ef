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

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// interceptable is a call that an intercept is told of.
func interceptable() *asynq.Task {
	return asynq.NewTaskWithHeaders("call", []byte("#1#"), map[string]string{"tenant": "a"})
}

// holdJoin has a task on its way into line, with those behind it waiting to go there
// together, until the returned function is called.
func (l *testProducer) holdJoin() (release func()) {
	l.t.Helper()
	enqueue := func() {
		_, err := l.Enqueue(l.t.Context(), call("a"))
		assert.NoError(l.t, err)
	}
	enqueue() // now Redis knows the scripts
	held, released := make(chan struct{}), make(chan struct{})
	l.beforeCalls(func(call int64) error {
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
	l.t.Cleanup(func() {
		release()
		first.Wait()
	})
	return release
}

// parkLeaving parks a task whose caller leaves while asynq is asked, and checks that it
// stands in line all the same.
func (l *testProducer) parkLeaving(ask func(leave func(), enqueue func() error) error) *asynq.TaskInfo {
	l.t.Helper()
	ctx, leave := context.WithCancel(l.t.Context())
	defer leave()
	p := l.intercepted(func(_ string, enqueue func() error) error { return ask(leave, enqueue) })
	info, err := p.Enqueue(ctx, interceptable())
	require.NoError(l.t, err)
	assert.Equal(l.t, asynq.TaskStateScheduled, l.stateOf(info).State)
	require.NotNil(l.t, l.where(info), "it has lost its place")
	return info
}

// A caller that leaves before its task is parked has left nothing behind.
func TestCallersThatLeaveBeforeParking(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		l := newTestProducer(t, srv, onePerMinute())
		l.openLine()
		ctx, leave := context.WithCancel(t.Context())
		l.beforeCalls(func(int64) error {
			leave()
			return nil
		})
		_, err := l.Enqueue(ctx, call("a", asynq.TaskID("mine")))
		require.ErrorIs(t, err, context.Canceled)
		_, err = l.inspector.GetTaskInfo("default", "mine")
		require.ErrorIs(t, err, asynq.ErrQueueNotFound)
		assert.Len(t, l.line(), 2, "the two before")
	})
}

// inBubble runs a test on each server whose time goes on only when everybody waits: what
// is asked of Redis takes none of it, however long it takes.
func inBubble(t *testing.T, test func(t *testing.T, l *testProducer)) {
	t.Helper()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		synctest.Test(t, func(t *testing.T) {
			l := newTestProducer(t, srv, onePerMinute())
			l.openLine()
			test(t, l)
		})
	})
}

// A caller that leaves while asynq takes its task has it parked all the same, even if
// the answer was lost and the client had to ask again.
func TestCallersThatLeaveWhileAsynqIsAsked(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *testProducer) {
		info := l.parkLeaving(func(leave func(), enqueue func() error) error {
			if err := enqueue(); err != nil {
				return err
			}
			leave()
			return enqueue()
		})
		assert.Equal(t, asynq.TaskStateScheduled, info.State)
		assert.Equal(t, l.stateOf(info).NextProcessAt.Unix(), info.NextProcessAt.Unix())
		assert.Len(t, l.line(), 3)
	})
}

// A caller that leaves while its task waits for others that are on their way into line
// does not take it out of their company: asynq has it for minutes later only.
func TestCallersThatLeaveWhileJoining(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *testProducer) {
		release := l.holdJoin()
		go func() {
			synctest.Wait()
			release()
		}()
		info := l.parkLeaving(func(leave func(), enqueue func() error) error {
			defer leave()
			return enqueue()
		})
		assert.Equal(t, int64(5), l.where(info).Position)
	})
}

// Nor does a caller wait for ever where nobody gets into line: its task comes by itself.
func TestJoiningIsGivenUp(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, l *testProducer) {
		l.holdJoin()
		began := time.Now()
		info, err := l.Enqueue(t.Context(), call("a"))
		require.NoError(t, err)
		assert.Equal(t, 5*time.Second, time.Since(began))
		assert.Equal(t, asynq.TaskStateScheduled, l.stateOf(info).State)
		assert.Nil(t, l.where(info))
	})
}
