package worker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// rounds is a handler whose runs end when so many of them are inside at once: none would
// if a slot stayed empty while tasks are in line.
type rounds struct {
	journal
	size, came, running, most int
	full                      chan struct{} // closed when this round has all it needs
}

func newRounds(size int) *rounds {
	return &rounds{journal: journal{grown: make(chan struct{}, 1)}, size: size, full: make(chan struct{})}
}

func (r *rounds) ProcessTask(ctx context.Context, task *asynq.Task) error {
	full := r.count(1)
	defer r.count(-1)
	_ = r.journal.ProcessTask(ctx, task)
	select {
	case <-full:
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (r *rounds) count(n int) (full <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running += n
	r.came, r.most, full = r.came+max(0, n), max(r.most, r.running), r.full
	if n > 0 && r.came%r.size == 0 {
		close(r.full)
		r.full = make(chan struct{})
	}
	return full
}

// Law 6 for slots, with law 5: as long as tasks are in line no slot stays empty, though
// every task was parked; each is dequeued about twice.
func TestSlotsAreKeptBusy(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const slots, tasks = 4, 80
		r := newTestServer(t, server, policy.Policy{Limits: atOnce(slots), Lane: "tenant", MaxWait: -1})
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

// Who stands by keeps a worker, but leaves some to other tasks.
func TestStandbysLeaveWorkersToOthers(t *testing.T) { scenario(runOthers).onEachServer(t) }

// runOthers has one slot go from task to task of a line, and returns how long one of some
// others took at most.
func runOthers(t *testing.T, server *throttletest.Server) (longest time.Duration) {
	r := newTestServer(t, server, policy.Policy{Limits: atOnce(1), Lane: "tenant", MaxWait: -1})
	r.config.Concurrency = 6
	r.enqueueFor(60, "a")
	all, others := newJournal(), newJournal()
	r.serve(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "other" {
			return others.ProcessTask(ctx, task)
		}
		return lasting(all)(ctx, task)
	})
	all.wait(t, 5)
	for i := range 5 {
		longest = max(longest, others.took(t, i+1, func() { r.add(asynq.NewTask("other", nil)) }))
	}
	return longest
}

// lasting is a handler whose runs last as long as each other.
func lasting(all *journal) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		_ = all.ProcessTask(ctx, task)
		<-time.After(lasts)
		return nil
	}
}

const lasts = 100 * time.Millisecond

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

// Law 4 at a shutdown, for tasks that wait until their time and for those that stand by:
// their places are given back, and they go back unharmed. Those on their last attempt can
// not be returned to asynq, so it takes them back when the shutdown's time is up.
func TestShutdownEndsWaits(t *testing.T) {
	t.Parallel()
	t.Run("for their time", scenario(shutDownWaiting).onEachServer)
	t.Run("for a slot", scenario(shutDownStanding).onEachServer)
}

func shutDownWaiting(t *testing.T, server *throttletest.Server) time.Duration {
	r := newTestServer(t, server, policy.Policy{Limits: per(5 * time.Minute), MaxWait: time.Hour})
	took := r.shutDown(func() bool { return r.peek().RetryAfter() > 30*time.Minute })
	assert.LessOrEqual(t, r.peek().RetryAfter(), 5*time.Minute)
	for _, task := range r.waiting() {
		assert.False(t, task.NextProcessAt.After(time.Now()))
	}
	return took
}

func shutDownStanding(t *testing.T, server *throttletest.Server) time.Duration {
	r := newTestServer(t, server, policy.Policy{Limits: atOnce(1), MaxWait: time.Hour})
	took := r.shutDown(func() bool { return r.standing() == 6 })
	all := newJournal()
	r.serve(all.ProcessTask)
	all.wait(t, 6)
	r.allEnd()
	return took
}

// shutDown ends a server when six tasks wait there.
func (r *testServer) shutDown(wait func() bool) time.Duration {
	running, none := r.holdSlot(), newJournal()
	stop := r.serve(none.ProcessTask)
	for i := range 6 {
		r.enqueue(1, asynq.Timeout(2*time.Hour), asynq.MaxRetry(i%2))
	}
	r.eventually("all wait", wait)
	took := none.took(r.t, 0, stop)
	assert.Empty(r.t, none.ran())
	assert.Len(r.t, r.waiting(), 6)
	for _, task := range r.waiting() {
		assert.Equal(r.t, task.MaxRetry > 0, task.LastErr != "", "it went by itself, unless on its last attempt")
		assert.Zero(r.t, task.Retried)
	}
	require.NoError(r.t, running.Release(r.t.Context()))
	return took
}
