package worker_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// rounds is a handler whose runs end when so many of them are inside at once: none would
// if a slot stayed empty while tasks are in line.
type rounds struct {
	journal
	size int

	mu                  sync.Mutex
	came, running, most int
	full                chan struct{} // closed when this round has all it needs
}

func newRounds(size int) *rounds {
	return &rounds{journal: journal{grown: make(chan struct{}, 1)}, size: size, full: make(chan struct{})}
}

func (r *rounds) ProcessTask(ctx context.Context, task *asynq.Task) error {
	defer r.leave()
	full := r.enter()
	_ = r.journal.ProcessTask(ctx, task)
	select {
	case <-full:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *rounds) enter() (full <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.came, r.running = r.came+1, r.running+1
	r.most = max(r.most, r.running)
	full = r.full
	if r.came%r.size == 0 {
		close(r.full)
		r.full = make(chan struct{})
	}
	return full
}

func (r *rounds) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
}

// Law 6 for slots, with law 5: as long as tasks are in line no slot stays empty, though
// every task was parked; each is dequeued about twice.
func TestSlotsAreKeptBusy(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const slots, tasks = 4, 80
		r := newTestServer(t, server, throttle.Policy{Limits: atOnce(slots), Lane: "tenant", MaxWait: -1})
		r.enqueueFor(tasks, "a")
		all := newRounds(slots)
		attempts := r.serveTwo(all)
		all.wait(t, tasks)
		r.allEnd()
		assert.Equal(t, slots, all.most, "never more at once")
		assert.LessOrEqual(t, attempts.Load(), int64(3*tasks))
		assert.Zero(t, r.queue().FailedTotal)
	})
}

// Who stands by keeps a worker, but leaves some to other tasks, even if it may stay for
// an hour.
func TestStandbysLeaveWorkersToOthers(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: atOnce(1), Lane: "tenant", MaxWait: time.Hour})
		r.config.Concurrency = 6
		running := r.holdSlot()
		all := newJournal()
		r.serve(all.ProcessTask)
		for i := range 8 {
			r.enqueueFor(1, "a")
			r.eventually("it stands by, or is parked", func() bool { return r.standing()+r.queue().Retry == i+1 })
		}
		r.add(asynq.NewTask("other", nil))
		all.wait(t, 1)
		require.NoError(t, running.Release(t.Context()))
		all.wait(t, 9)
		r.allEnd()
	})
}

// holdSlot takes a slot until it is released.
func (r *testServer) holdSlot() *throttle.Reservation {
	r.t.Helper()
	running, err := r.limiter.Reserve(r.t.Context(), throttle.Request{Policy: "api", TaskID: "other"})
	require.NoError(r.t, err)
	running.Hold(r.t.Context())
	return running
}

// standing is how many tasks stand by for a slot.
func (r *testServer) standing() (n int) {
	for _, key := range r.lineKeys() {
		if strings.Contains(key, "/standing:") {
			n += int(r.limiter.Redis().ZCard(r.t.Context(), key).Val())
		}
	}
	return n
}

// A process that ends while tasks stand by there leaves them to the others, uncharged.
func TestShutdownLetsStandbysGo(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: atOnce(1), MaxWait: time.Hour})
		running := r.holdSlot()
		all := newJournal()
		stop := r.serve(all.ProcessTask)
		r.enqueue(3)
		r.enqueue(3, asynq.MaxRetry(0))
		r.eventually("all stand by", func() bool { return r.standing() == 6 })
		stop()
		assert.Zero(t, r.queue().Archived)
		assert.Zero(t, r.queue().FailedTotal)
		assert.Len(t, r.waiting(), 6)
		for _, task := range r.waiting() {
			assert.Equal(t, task.MaxRetry > 0, task.LastErr != "", "asynq took back those on their last attempts alone")
		}
		require.NoError(t, running.Release(t.Context()))
		r.serve(all.ProcessTask)
		all.wait(t, 6)
		r.allEnd()
	})
}
