package worker

import (
	"cmp"
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
	"github.com/rampmeter/rampmeter/internal/line"
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
	near      *atomic.Int64 // nanoseconds; see line.Waking
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
		line.Signals(ctx, d.limiter, line.Listener{
			Policy: d.served.nudge,
			Task:   func(task string, slot line.Slot) { d.rooms.call(task, slot) },
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
	s := &shift{dispatcher: d, policy: policy, tempo: &on.tempo, rerouted: &on.rerouted, takes: time.Millisecond}
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
		call, err := s.line().Wake(ctx, s.waking(ctx))
		asked := time.Now()
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("could not ask who is next in line", zap.String("policy", policy), zap.Error(err))
			}
			timer.Reset(shortestRest + mathrand.N(longestRest-shortestRest))
			continue
		}
		follows = !call.Leads
		s.leads, s.gone = call.Leads && call.Next > 0, nil
		again := s.wake(ctx, call.Tasks)
		next := cmp.Or(call.Next, longestQuiet)
		if len(s.gone) > 0 {
			next = 0 // others may have their places
		}
		timer.Reset(min(next-time.Since(asked), again))
	}
}

// waking says how far ahead to wake.
func (s *shift) waking(ctx context.Context) line.Waking {
	w := line.Waking{As: s.as, Near: time.Duration(s.near.Load()), Hold: s.tempo.hold(), Gone: s.gone}
	if w.Hold > 0 {
		// Those who are on their way have no worker yet, and come in half that time.
		coming := s.crowd.working.Load() * int64(w.Near) / int64(2*w.Hold)
		w.StandBy = (s.crowd.spare() + int(coming)) * s.tempo.processes(ctx, s.line().Listeners)
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
	gone   []line.WokenTask // which asynq does not have any more
	takes  time.Duration    // to wake a task, at the last time, or as is believed at first
	// recalls is set where tasks are woken that stand in no line any more.
	recalls bool
	// rerouted tells that tasks may stand in line that are another policy's now.
	rerouted *atomic.Bool
}

// line is the one that the policy has now.
func (s *shift) line() *line.Line { return s.limiter.Line(s.policy) }

// review has the tasks looked at anew that were found to be held back by numbers that are
// no longer in force.
func (s *shift) review(ctx context.Context) {
	if err := s.line().Review(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("could not look at the tasks in line anew, they wait for as long as they would have before the update",
			zap.String("policy", s.policy), zap.Error(err))
	}
}

// busyTask is a woken task that asynq says is running. Mostly it is on its way back
// to asynq, since it has stood in line for an instant only; or it waits for its turn
// in some worker.
type busyTask struct {
	line.WokenTask
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

// wake wakes tasks, and those that were busy before. It returns after how long to be
// called again for those that are.
func (s *shift) wake(ctx context.Context, tasks []line.WokenTask) (again time.Duration) {
	due := s.dueBusy(ctx)
	for _, task := range tasks {
		due = append(due, busyTask{WokenTask: task})
	}
	s.run(ctx, due)
	again = math.MaxInt64
	for _, b := range s.busy {
		again = min(again, max(0, time.Until(b.at)))
	}
	return again
}

// dueBusy takes those that were busy, are to be tried again and have not asked yet.
func (s *shift) dueBusy(ctx context.Context) (due []busyTask) {
	now := time.Now()
	var tasks []line.WokenTask
	s.busy = slices.DeleteFunc(s.busy, func(b busyTask) bool {
		if b.at.After(now) {
			return false
		}
		b.tries++
		due, tasks = append(due, b), append(tasks, b.WokenTask)
		return true
	})
	if s.recalls {
		return due
	}
	expected, err := s.line().AreExpected(ctx, tasks...)
	if err != nil {
		return due
	}
	still := due[:0]
	for i, b := range due {
		if expected[i] {
			still = append(still, b)
		}
	}
	return still
}

// Tasks are woken one after the other, for they are to come in their order, but no longer
// than wakeTime: where that is too short, more are woken at once, and come in about their
// order.
const (
	wakeTime   = 50 * time.Millisecond
	mostAtOnce = 32
)

// run gives tasks to asynq to run.
func (s *shift) run(ctx context.Context, tasks []busyTask) {
	hasArchived := map[string]bool{}
	for _, task := range tasks {
		if queue, _, ok := throttle.ParseTaskName(task.TaskID); ok {
			if _, known := hasArchived[queue]; !known {
				hasArchived[queue] = s.hasArchived(queue)
			}
		}
	}
	if len(tasks) == 0 {
		return
	}
	states := make([]wakeState, len(tasks))
	var running sync.WaitGroup
	var next atomic.Int64
	began, atOnce := time.Now(), min(mostAtOnce, len(tasks), 1+int(time.Duration(len(tasks))*s.takes/wakeTime))
	for range atOnce {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(tasks)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				queue, id, ok := throttle.ParseTaskName(tasks[i].TaskID)
				if ok {
					states[i] = s.runOne(ctx, tasks[i], queue, id, hasArchived[queue])
				}
			}
		})
	}
	running.Wait()
	s.takes = time.Since(began) * time.Duration(atOnce) / time.Duration(len(tasks))
	for i, task := range tasks {
		switch states[i] {
		case isGoneNow:
			s.gone = append(s.gone, task.WokenTask)
		case isBusy:
			if task.tries < mostTries {
				task.at = time.Now().Add(shortestTry << task.tries)
				s.busy = append(s.busy, task)
			}
		case isOnItsWay:
		}
	}
}

// wakeState is what became of a wake.
type wakeState int

const (
	isOnItsWay wakeState = iota
	isBusy               // asynq says that it is running
	isGoneNow            // nobody is to wait for it
)

// runOne gives a task to asynq to run.
func (s *shift) runOne(ctx context.Context, task busyTask, queue, id string, hasArchived bool) wakeState {
	if hasArchived && s.isLaidAside(queue, id) {
		return isGoneNow
	}
	strays := s.strays(queue, id)
	err := s.inspector.RunTask(queue, id)
	isBetween := asynqfacts.IsGone(err) && s.spares.has(ctx, task.TaskID)
	if asynqfacts.IsGone(err) && !isBetween {
		err = s.inspector.RunTask(queue, id) // it may be back just now
	}
	switch {
	case err == nil && strays, asynqfacts.IsGone(err) && !isBetween:
		return isGoneNow
	case err == nil:
	case isBetween || asynqfacts.IsRunning(err):
		if !s.rooms.call(task.TaskID, line.Slot{}) && task.tries < callTries {
			err := s.line().CallTask(ctx, task.TaskID) // it may wait for its turn in another process
			if err != nil && ctx.Err() == nil {
				s.log.Warn("could not call a task", zap.String("policy", s.policy),
					zap.String("task_id", task.TaskID), zap.Error(err))
			}
		}
		return isBusy
	case asynqfacts.IsPending(err): // it is on its way
	default:
		s.log.Warn("could not wake a task", zap.String("policy", s.policy),
			zap.String("task_id", task.TaskID), zap.Error(err))
	}
	return isOnItsWay
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
	_, _ = s.line().Wake(ctx, line.Waking{As: s.as, Leaves: true}) // or they will, after its term
}
