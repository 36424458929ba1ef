package worker_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// lasting is a handler whose runs last as long as each other. It records who ran, when,
// and how many at once.
type lasting struct {
	journal
	takes time.Duration

	mu            sync.Mutex
	running, most int
}

func newLasting(takes time.Duration) *lasting {
	return &lasting{takes: takes, journal: journal{grown: make(chan struct{}, 1)}}
}

func (l *lasting) ProcessTask(ctx context.Context, task *asynq.Task) error {
	l.enter(1)
	defer l.enter(-1)
	_ = l.journal.ProcessTask(ctx, task)
	timer := time.NewTimer(l.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

func (l *lasting) enter(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running += n
	l.most = max(l.most, l.running)
}

// atOnce is how many ran at once, at most.
func (l *lasting) atOnce() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most
}

// busy is which share of so many slots' time was used, from the first start to the last.
func (l *lasting) busy(slots int) float64 {
	first, last := l.times[0], l.times[len(l.times)-1]
	var used time.Duration
	for _, began := range l.times {
		used += min(l.takes, last.Sub(began))
	}
	return float64(used) / float64(time.Duration(slots)*last.Sub(first))
}

// Law 6 for slots, with law 5 and law 7: as long as tasks are in line, hardly a slot is
// empty, though every task was parked; each is dequeued twice at most, and in order.
func TestSlotsAreKeptBusy(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const slots, tasks = 4, 160
		r := newTestServer(t, server, throttle.Policy{Limits: atOnce(slots), Lane: "tenant", MaxWait: -1})
		r.enqueueFor("a", tasks)
		all := newLasting(100 * time.Millisecond)
		attempts := r.serveTwo(all)
		all.wait(t, tasks)
		r.allEnd()
		assert.Equal(t, slots, all.atOnce(), "never more at once")
		assert.Greater(t, all.busy(slots), 0.75, "without standing by it is half")
		assert.LessOrEqual(t, float64(attempts.Load())/tasks, 2.1)
		assert.LessOrEqual(t, stepsBack(all.tasks, 2*slots), tasks/10)
		assert.Zero(t, r.queue().FailedTotal)
	})
}

// stepsBack is how often a task of one tenant ran after one that came much later.
func stepsBack(ran []string, far int) (n int) {
	before := 0
	for _, task := range ran {
		number, err := strconv.Atoi(task[len(task)-4:])
		if err != nil || number < before-far {
			n++
		}
		before = number
	}
	return n
}

// Who stands by keeps a worker, but leaves some to other tasks.
func TestStandbysLeaveWorkersToOthers(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	r := newTestServer(t, server, throttle.Policy{Limits: atOnce(1), Lane: "tenant", MaxWait: -1})
	r.config.Concurrency = 6
	r.enqueueFor("a", 60)
	all := newLasting(100 * time.Millisecond)
	others := make(chan time.Time, 20)
	r.serve(func(ctx context.Context, task *asynq.Task) error {
		if task.Type() == "other" {
			others <- time.Now()
			return nil
		}
		return all.ProcessTask(ctx, task)
	})
	all.wait(t, 10)
	for range 10 {
		enqueued := time.Now()
		r.add(asynq.NewTask("other", nil))
		select {
		case ran := <-others:
			assert.Less(t, ran.Sub(enqueued), time.Second, "asynq's interval, and a busy machine")
		case <-time.After(10 * time.Second):
			t.Fatal("a task of another kind does not run")
		}
	}
	all.wait(t, 60)
	assert.Equal(t, 1, all.atOnce())
}

// A process that ends while tasks stand by there leaves them to the others, uncharged.
func TestShutdownLetsStandbysGo(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, throttle.Policy{Limits: atOnce(1), MaxWait: time.Hour})
		running, err := r.limiter.Reserve(t.Context(), throttle.Request{Policy: "api", TaskID: "other"})
		require.NoError(t, err)
		running.Hold(t.Context())
		all := count(6)
		stop := r.serve(all.ProcessTask)
		r.enqueue(3)
		r.enqueue(3, asynq.MaxRetry(0))
		r.eventually("all stand by", func() bool {
			return server.Client().ZCard(t.Context(), "rm:{api}/line/standing:rm:{api}:slots").Val() == 6
		})
		assert.Less(t, stop(), 5*time.Second)
		assert.Zero(t, r.queue().Archived)
		assert.Zero(t, r.queue().FailedTotal)
		assert.Equal(t, 6, r.queue().Size)
		require.NoError(t, running.Release(t.Context()))
		r.serve(all.ProcessTask)
		all.wait(t)
		r.allEnd()
	})
}
