package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Law 10, in the middle of a backlog, for all workers at once: Redis refuses
// connections, says nothing, or has forgotten its scripts. Nothing starts that may not;
// no task is lost, charged or archived; and the workers go on by themselves.
func TestRedisOutage(t *testing.T) {
	const tasks, rate, concurrency = 600, 100, 8
	for name, test := range map[string]struct {
		outage func(s *testFleet, l *link)
		untold int // how many tasks may have ended without asynq being told
	}{
		"refused": {func(_ *testFleet, l *link) {
			l.cut()
			<-time.After(2 * time.Second)
			l.mend()
		}, 2 * concurrency},
		"silent": {func(_ *testFleet, l *link) {
			l.hold()
			<-time.After(6 * time.Second) // longer than any call takes
			l.mend()
		}, 2 * concurrency},
		"forgetful": {func(s *testFleet, _ *link) {
			require.NoError(s, s.redis.Client().ScriptFlush(s.Context()).Err())
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestFleet(t, throttletest.Redis(t), throttletest.UpstreamConfig{}, fmt.Sprintf(`
    limits:
      - {name: calls, algorithm: token_bucket, rate: %d/s, burst: 1}
    lane: tenant
`, rate))
			s.enqueue(tasks, ofTenants(5))
			l := newLink(t, s.redis.Addr())
			for range 2 {
				s.work(concurrency, "-redis", "redis://"+l.addr)
			}
			s.awaitCalls(150, time.Minute)
			test.outage(s, l)
			mended := time.Now()

			// asynq does not try again to be told that a task has ended: it brings it back
			// when its lease is over.
			s.awaitQueue("called, but for those", time.Minute, func(q *asynq.QueueInfo) bool {
				return q.Pending+q.Scheduled == 0 && q.Active+q.Retry <= test.untold && len(s.called())+test.untold >= tasks
			})
			left := s.noneLost(tasks)
			assert.Zero(t, s.queue().FailedTotal, "charged")
			arrivals := s.upstream.Arrivals()
			burst := throttletest.MaxBurst(arrivals, rate, time.Second)
			assert.LessOrEqual(t, burst, 1+9, "never over, but for what the network bunches up")
			resumed := firstAfter(arrivals, mended).Sub(mended)
			assert.Less(t, resumed, 5*time.Second, "by themselves")
			t.Logf("%d of %d called, %d with asynq, at most %d at once, again after %s",
				len(s.called()), tasks, left, burst, resumed.Round(time.Millisecond))
		})
	}
}

func firstAfter(instants []time.Time, x time.Time) time.Time {
	for _, at := range instants {
		if at.After(x) {
			return at
		}
	}
	return x.Add(time.Hour)
}

// link is a way to a server that can fail.
type link struct {
	t            *testing.T
	server, addr string
	pending      sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]struct{}
	held     chan struct{} // closed while what is sent arrives
}

func newLink(t *testing.T, server string) *link {
	t.Helper()
	l := &link{t: t, server: server, addr: "127.0.0.1:0", conns: map[net.Conn]struct{}{}, held: make(chan struct{})}
	close(l.held)
	l.mend()
	t.Cleanup(func() {
		l.cut()
		l.pending.Wait()
	})
	return l
}

// cut ends all connections, and refuses others.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.listener.Close()
	for conn := range l.conns {
		_ = conn.Close()
	}
}

// hold lets nothing through, and breaks no connection.
func (l *link) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

// mend lets everything through again: what was held, too.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.held:
	default:
		close(l.held)
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(l.t.Context(), "tcp", l.addr)
	require.NoError(l.t, err)
	l.listener, l.addr = listener, listener.Addr().String()
	l.pending.Go(func() { l.accept(listener) })
}

func (l *link) accept(listener net.Listener) {
	for {
		here, err := listener.Accept()
		if err != nil {
			return
		}
		there, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", l.server)
		if err != nil {
			_ = here.Close()
			continue
		}
		l.mu.Lock()
		l.conns[here], l.conns[there] = struct{}{}, struct{}{}
		l.mu.Unlock()
		l.pending.Go(func() { l.carry(here, there) })
		l.pending.Go(func() { l.carry(there, here) })
	}
}

// carry carries what is sent, until either end closes.
func (l *link) carry(from, to net.Conn) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
		l.mu.Lock()
		delete(l.conns, from)
		delete(l.conns, to)
		l.mu.Unlock()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		held := l.held
		l.mu.Unlock()
		<-held
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}
