package worker

import (
	"context"
	"crypto/rand"
	"math"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle"
)

// dispatcher wakes the tasks of waiting lines when their turn comes. Every process
// has one; for each policy, one process at a time is the one to wake.
type dispatcher struct {
	limiter   *throttle.Limiter
	inspector *asynq.Inspector
	rooms     *waitingRoom
	spares    *spares
	log       *zap.Logger
	as        string
	near      *atomic.Int64 // nanoseconds; see throttle.Waking
	crowd     *crowd

	stop   context.CancelFunc
	ended  sync.WaitGroup
	served services
}

// A call that failed is made again after a time between these; where nobody is in
// line, one is made this often in case a signal was lost.
const (
	shortestRest = 500 * time.Millisecond
	longestRest  = 1500 * time.Millisecond
	longestQuiet = time.Minute
)

func newDispatcher(m *Middleware, inspector *asynq.Inspector) *dispatcher {
	return &dispatcher{
		limiter: m.limiter, inspector: inspector, rooms: &m.rooms, spares: m.spares, log: m.log, as: rand.Text(), near: &m.near,
		crowd: &m.crowd,
	}
}

// start begins to serve all policies, until close.
func (d *dispatcher) start() {
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.ended.Go(func() { d.follow(ctx) })
	d.ended.Go(func() { d.spares.watch(ctx) })
	d.ended.Go(func() {
		d.limiter.Signals(ctx, throttle.Listener{
			Policy: d.served.nudge,
			Task:   func(task string) { d.rooms.call(task) },
			Freed:  d.served.hear,
		})
	})
}

func (d *dispatcher) close() {
	if d.stop != nil {
		d.stop()
		d.ended.Wait()
	}
}

// serve wakes the tasks of one policy.
func (d *dispatcher) serve(ctx context.Context, policy string, on *service) {
	s := &shift{dispatcher: d, policy: policy, tempo: &on.tempo, rerouted: &on.rerouted}
	timer := time.NewTimer(0)
	defer timer.Stop()
	follows := false
	for {
		heard := on.nudged
		if follows {
			heard = nil // the one who leads has heard it too
		}
		select {
		case <-ctx.Done():
			s.end(context.WithoutCancel(ctx))
			return
		case <-heard:
		case <-on.updated:
			s.review(ctx)
		case <-timer.C:
		}
		call, err := d.limiter.Wake(ctx, policy, s.waking(ctx))
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("could not ask who is next in line", zap.String("policy", policy), zap.Error(err))
			}
			timer.Reset(shortestRest + mathrand.N(longestRest-shortestRest))
			continue
		}
		follows = !call.Leads
		s.leads = call.Leads && call.Next > 0
		again := s.wake(ctx, call.Tasks)
		next := call.Next
		if next == 0 {
			next = longestQuiet
		}
		timer.Reset(min(next, again))
	}
}

// waking says how far ahead to wake.
func (s *shift) waking(ctx context.Context) throttle.Waking {
	w := throttle.Waking{As: s.as, Near: time.Duration(s.near.Load()), Hold: s.tempo.hold()}
	if w.Hold > 0 {
		// Those who are on their way have no worker yet, and come in half that time.
		coming := s.crowd.working.Load() * int64(w.Near) / int64(2*w.Hold)
		w.StandBy = (s.crowd.spare() + int(coming)) * s.tempo.processes(ctx, func(ctx context.Context) (int, error) {
			return s.limiter.Listeners(ctx, s.policy)
		})
	}
	return w
}

// shift is a dispatcher's work for one policy.
type shift struct {
	*dispatcher
	policy string
	tempo  *tempo
	leads  bool
	busy   []busyTask
	// rerouted tells that tasks may stand in line that are another policy's now.
	rerouted *atomic.Bool
}

// review has the tasks looked at anew that were found to be held back by numbers that are
// no longer in force.
func (s *shift) review(ctx context.Context) {
	if err := s.limiter.Review(ctx, s.policy); err != nil && ctx.Err() == nil {
		s.log.Warn("could not look at the tasks in line anew, they wait for as long as they would have before the update",
			zap.String("policy", s.policy), zap.Error(err))
	}
}

// busyTask is a woken task that asynq says is running. Mostly it is on its way back
// to asynq, since it has stood in line for an instant only; or it waits for its turn
// in some worker.
type busyTask struct {
	throttle.WokenTask
	tries int
	at    time.Time
}

// How often and after how long a busy task is tried again, the latter each time
// doubled. After that, the line has it woken again.
const (
	mostTries    = 8
	callTries    = 3 // how often it is called in other processes
	shortestTry  = 4 * time.Millisecond
	leaveTimeout = 3 * time.Second
)

// wake wakes tasks, in order, and those that were busy before. It returns after how
// long to be called again for those that are.
func (s *shift) wake(ctx context.Context, tasks []throttle.WokenTask) (again time.Duration) {
	gone := append(s.run(ctx, tasks, 0), s.tryBusy(ctx)...)
	if err := s.limiter.Leave(ctx, s.policy, gone...); err != nil && ctx.Err() == nil {
		s.log.Warn("could not take tasks out of line", zap.String("policy", s.policy), zap.Error(err))
	}
	again = math.MaxInt64
	for _, b := range s.busy {
		again = min(again, max(0, time.Until(b.at)))
	}
	return again
}

// tryBusy tries those again that were busy and have not asked yet.
func (s *shift) tryBusy(ctx context.Context) (gone []throttle.WokenTask) {
	var due []busyTask
	now := time.Now()
	s.busy = slices.DeleteFunc(s.busy, func(b busyTask) bool {
		if b.at.After(now) {
			return false
		}
		due = append(due, b)
		return true
	})
	tasks := make([]throttle.WokenTask, len(due))
	for i := range due {
		tasks[i] = due[i].WokenTask
	}
	expected, err := s.limiter.AreExpected(ctx, s.policy, tasks...)
	for i, b := range due {
		if err != nil || expected[i] {
			gone = append(gone, s.run(ctx, tasks[i:i+1], b.tries+1)...)
		}
	}
	return gone
}

// run gives tasks to asynq to run, and returns those that are not there any more.
func (s *shift) run(ctx context.Context, tasks []throttle.WokenTask, tries int) (gone []throttle.WokenTask) {
	laidAside := map[string]bool{}
	for _, task := range tasks {
		queue, id, ok := throttle.ParseTaskName(task.TaskID)
		if !ok || ctx.Err() != nil {
			continue
		}
		if _, known := laidAside[queue]; !known {
			laidAside[queue] = s.hasArchived(queue)
		}
		if laidAside[queue] && s.isLaidAside(queue, id) {
			gone = append(gone, task)
			continue
		}
		strays := s.strays(queue, id)
		err := s.inspector.RunTask(queue, id)
		isBetween := asynqfacts.IsGone(err) && s.spares.has(ctx, task.TaskID)
		if asynqfacts.IsGone(err) && !isBetween {
			err = s.inspector.RunTask(queue, id) // it may be back just now
		}
		switch {
		case err == nil && strays, asynqfacts.IsGone(err) && !isBetween:
			gone = append(gone, task)
		case err == nil:
		case isBetween || asynqfacts.IsRunning(err):
			if !s.rooms.call(task.TaskID) && tries < callTries {
				s.callElsewhere(ctx, task)
			}
			if tries < mostTries {
				s.busy = append(s.busy, busyTask{task, tries, time.Now().Add(shortestTry << tries)})
			}
		case asynqfacts.IsPending(err): // it is on its way
		default:
			s.log.Warn("could not wake a task", zap.String("policy", s.policy),
				zap.String("task_id", task.TaskID), zap.Error(err))
		}
	}
	return gone
}

// callElsewhere calls a task that may wait for its turn in another process.
func (s *shift) callElsewhere(ctx context.Context, task throttle.WokenTask) {
	if err := s.limiter.CallTask(ctx, s.policy, task.TaskID); err != nil && ctx.Err() == nil {
		s.log.Warn("could not call a task", zap.String("policy", s.policy),
			zap.String("task_id", task.TaskID), zap.Error(err))
	}
}

// hasArchived tells whether a queue has tasks that somebody, or asynq, has laid aside.
// RunTask would run them, wanted or not.
func (s *shift) hasArchived(queue string) bool {
	tasks, err := s.inspector.ListArchivedTasks(queue, asynq.PageSize(1))
	return err != nil || len(tasks) > 0
}

// isLaidAside reports whether a task is not to run any more.
func (s *shift) isLaidAside(queue, id string) bool {
	info, err := s.inspector.GetTaskInfo(queue, id)
	return err == nil && asynqfacts.IsLaidAside(info) // or else RunTask will say
}

// strays reports whether a task is to ask another policy now: nobody is to wait for it
// here.
func (s *shift) strays(queue, id string) bool {
	if !s.rerouted.Load() {
		return false
	}
	info, err := s.inspector.GetTaskInfo(queue, id)
	if err != nil {
		return false // RunTask will say
	}
	policy := s.limiter.Config().PolicyFor(info.Type)
	return policy == nil || policy.Name != s.policy
}

// end lets another process take over at once.
func (s *shift) end(ctx context.Context) {
	if !s.leads {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	_ = s.limiter.Yield(ctx, s.policy, s.as) // or they will, after its term
}
