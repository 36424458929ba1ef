package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// MiddlewareConfig is what a Middleware is made of.
type MiddlewareConfig struct {
	// Limiter decides. Required.
	Limiter *throttle.Limiter
	// PoliciesFile is the file that the Limiter's policies are from. It is looked at
	// several times a second, and when its content has changed the policies are put in
	// force as by [Middleware.Update]. A file that can not be used, or is gone, changes
	// nothing and is logged. Empty means that there is none.
	PoliciesFile string
	// Attributes tells a task's attributes. Nil means its headers.
	Attributes func(*asynq.Task) map[string]string
	// Logger hears of tasks that were deferred because Redis could not be asked, of
	// freezes, and of policies that have changed. Nil means silence.
	Logger *zap.Logger
	// Registerer takes the metrics. Nil means none.
	Registerer prometheus.Registerer
	// MaxRefusals is how often the upstream may refuse the calls of one task, at no
	// charge, before that counts as a failure of the task, of which asynq retries or
	// archives it. Zero means 100.
	MaxRefusals int64
	// Inspector wakes tasks that stand in line; the Middleware does not close it. Nil
	// means one on the Limiter's Redis, which is right where tasks and limits live in
	// the same.
	Inspector *asynq.Inspector
	// Fallbacks are what runs in place of a task's handler where a policy, by its name,
	// degrades when it is overloaded; an [asynq.ServeMux] is one for several types of
	// tasks. A fallback runs without a reservation, at once, and what it returns is what
	// becomes of the task. Each policy with policy.OverloadDegrade needs one.
	Fallbacks map[string]asynq.Handler
	// OnOverload decides on a task whose start is too far ahead, in place of its policy's
	// overload strategy: see [policy.Overload]. What it returns for a task whose
	// deadline can not be met is taken as policy.OverloadReject if it is OverloadPark.
	// Nil means that the policies decide. It may be called concurrently.
	OnOverload func(context.Context, *asynq.Task, *throttle.OverloadError) policy.Overload
}

// Middleware makes handlers wait for their policy. It is safe for concurrent use
// by any number of servers.
type Middleware struct {
	limiter    *throttle.Limiter
	attributes func(*asynq.Task) map[string]string
	log        *zap.Logger
	metrics    *metrics
	file       *policiesFile // nil if there is none
	told       sync.Map      // what the upstream was last logged to allow, by policy/limit

	maxRefusals int64
	fallbacks   map[string]asynq.Handler
	onOverload  func(context.Context, *asynq.Task, *throttle.OverloadError) policy.Overload
	dispatcher  *dispatcher
	dispatch    sync.Once // starts it
	watching    sync.WaitGroup
	rooms       waitingRoom
	spares      *spares
	crowd       crowd
	near        atomic.Int64 // how long before its slot a task is woken; nanoseconds

	draining context.Context // ends with Drain
	drain    context.CancelFunc
	closed   context.Context // ends with Close
	close    context.CancelFunc
	owned    io.Closer // the connection that Open made; may be nil
}

// NewMiddleware returns a Middleware, or an error when the Limiter or a fallback is
// missing or the metrics can not be registered.
func NewMiddleware(config MiddlewareConfig) (*Middleware, error) {
	if config.Limiter == nil {
		return nil, errors.New("worker: MiddlewareConfig.Limiter is required")
	}
	if err := checkFallbacks(config.Limiter.Config(), config.Fallbacks); err != nil {
		return nil, err
	}
	m := &Middleware{
		limiter: config.Limiter, attributes: config.Attributes, log: config.Logger, maxRefusals: config.MaxRefusals,
		fallbacks: config.Fallbacks, onOverload: config.OnOverload,
	}
	if m.maxRefusals <= 0 {
		m.maxRefusals = defaultMaxRefusals
	}
	if m.attributes == nil {
		m.attributes = (*asynq.Task).Headers
	}
	if m.log == nil {
		m.log = zap.NewNop()
	}
	var err error
	if m.metrics, err = newMetrics(config.Registerer); err != nil {
		return nil, fmt.Errorf("worker: registering metrics: %w", err)
	}
	inspector := config.Inspector
	if inspector == nil {
		inspector = asynq.NewInspectorFromRedisClient(m.limiter.Redis())
	}
	if config.PoliciesFile != "" {
		m.file = &policiesFile{path: config.PoliciesFile, take: m.takeFile}
	}
	m.spares = newSpares(m.limiter.Redis(), inspector, m.log)
	m.dispatcher = newDispatcher(m, inspector)
	m.observe(asynq.Config{})
	m.draining, m.drain = context.WithCancel(context.Background())
	m.closed, m.close = context.WithCancel(context.Background())
	return m, nil
}

// Wrap returns a handler that lets a task start next only when the policy of its
// type allows. It is an [asynq.MiddlewareFunc]: mux.Use(m.Wrap). Tasks that no
// route sends to a policy pass straight through.
//
// A task that lacks an attribute, or can never pass, is archived with the reason.
//
// The first call starts what wakes the tasks of waiting lines and what watches the
// policies file; Close ends both.
func (m *Middleware) Wrap(next asynq.Handler) asynq.Handler {
	m.dispatch.Do(m.start)
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		a := &attempt{Middleware: m, task: task, next: next}
		return a.run(ctx)
	})
}

// start begins what runs beside the handlers.
func (m *Middleware) start() {
	m.dispatcher.start()
	if m.file != nil {
		m.watching.Go(func() { m.file.watch(m.closed) })
	}
}

// Drain makes every task that waits for its slot give the slot back and leave,
// and lets no further task start waiting. Call it when the server pulls no more
// tasks: srv.Stop, Drain, srv.Shutdown, Close. [Server] does.
func (m *Middleware) Drain() { m.drain() }

// Close ends what Drain had to leave to asynq: a task on its last attempt stays
// until asynq puts it back, because returning would archive it. It also closes
// the connection that [Open] made. Call it after srv.Shutdown has returned.
func (m *Middleware) Close() error {
	m.drain()
	m.close()
	m.dispatch.Do(func() {}) // not any more
	m.watching.Wait()
	m.dispatcher.close()
	m.spares.close()
	if m.owned == nil {
		return nil
	}
	return m.owned.Close()
}

// attempt is one attempt of one task.
type attempt struct {
	*Middleware
	task   *asynq.Task
	policy *policy.Policy // that was in force when it last asked; nil when no route matches
	// updated is closed when other policies are in force than those.
	updated <-chan struct{}
	// reservation is what the task was admitted by; nil without a policy.
	reservation *throttle.Reservation
	// calls has something when the task is called; called is set if it asks for that.
	calls  <-chan line.Slot
	called bool
	// stands is the answer by which it stands by, nil if it does not; and slot what it was
	// handed since then.
	stands *throttle.Reservation
	slot   line.Slot
	// leaves is when a task that stays here without a slot gives up, and cutOff since
	// when Redis could not be asked for one; see stay.
	leaves, cutOff time.Time
	// next is the program's handler, and handler what runs: that or a fallback.
	next, handler asynq.Handler
	// parks is set for a task that is to stand in line however long that takes, lastCall
	// for one that asks a last time before it is given up.
	parks, lastCall bool
}

// run admits the task and runs it, until there is something to tell asynq.
func (a *attempt) run(ctx context.Context) error {
	calls, leave := a.rooms.enter(taskName(ctx)) // it may be called as soon as it has asked
	defer leave()
	a.calls = calls
	for {
		a.handler = a.next
		err := a.admit(ctx)
		if err == nil {
			err = a.work(ctx)
		}
		if limited := (*throttle.RateLimitedError)(nil); errors.As(err, &limited) {
			// The upstream is right: close the policy for everybody and ask again.
			if err = a.rateLimited(ctx, limited); err == nil {
				continue
			}
		}
		throttled := (*throttle.ThrottledError)(nil)
		if !errors.As(err, &throttled) {
			return exhausted(a.task, err)
		}
		asksAgain, ended := a.stay(ctx, throttled)
		if ended != nil {
			return ended
		}
		if !asksAgain && a.isGivenUp(throttled) {
			asksAgain, a.lastCall = true, true
		}
		if !asksAgain {
			a.metrics.deferred(throttled)
			throttled.RetryAfter = a.returnsIn(throttled)
			return err
		}
	}
}

// admit returns nil when the task may start now.
func (a *attempt) admit(ctx context.Context) error {
	a.updated = a.limiter.Updated()
	a.policy, a.reservation = a.limiter.Config().PolicyFor(a.task.Type()), nil
	if a.policy == nil {
		return nil
	}
	if a.draining.Err() != nil {
		return a.shutdown()
	}
	asked := time.Now()
	reservation, err := a.reserveInTime(ctx)
	var (
		attribute *policy.AttributeError
		overload  *throttle.OverloadError
		never     *policy.NeverError
		throttled *throttle.ThrottledError
	)
	switch {
	case err == nil:
		a.reservation = reservation
		a.metrics.started(a.policy.Name, time.Since(asked))
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, throttle.ErrUnknownPolicy):
		return a.admit(ctx) // it was removed just now
	case errors.As(err, &attribute), errors.As(err, &never):
		a.metrics.refused(a.policy.Name)
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	case errors.As(err, &overload):
		return a.overloaded(ctx, overload)
	case errors.As(err, &throttled):
		return throttled
	case a.draining.Err() != nil:
		return a.shutdown()
	}
	return a.unasked(err)
}

// reserve asks for the task's slot, and waits for it where it is near. Who stood by, and was
// handed a slot, need not ask.
func (a *attempt) reserve(ctx context.Context, maxDefer time.Duration) (*throttle.Reservation, error) {
	stood, called, since := a.stands, a.called, time.Time{}
	a.stands, a.called = nil, false
	if stood != nil {
		since = stood.Place.Since
		if stood.Accept(a.slot) {
			return stood, a.wait(ctx, stood)
		}
	}
	select {
	case <-a.calls: // it is asking
	default:
	}
	reservation, err := a.limiter.Reserve(ctx, throttle.Request{
		Policy:     a.policy.Name,
		TaskID:     taskName(ctx),
		Attributes: a.attributes(a.task),
		MaxWait:    a.longestWait(ctx),
		Park:       true,
		MaxDefer:   maxDefer,
		StandBy:    a.mayStandBy(),
		Called:     called,
		Since:      since,
	})
	if err != nil {
		return nil, err
	}
	return reservation, a.wait(ctx, reservation)
}

// wait waits for a slot.
func (a *attempt) wait(ctx context.Context, reservation *throttle.Reservation) error {
	waiting := &until{Context: ctx, end: a.draining}
	defer waiting.stop()
	defer a.crowd.enter()()
	err := reservation.Wait(waiting)
	if err != nil && reservation.Place != nil && reservation.Place.StandsBy {
		a.stands = reservation
	}
	return err
}

// patience is how long the task may wait here for its slot: as its policy says. But
// where lanes share a policy, or keys have slots of their own, tasks that wait here hide
// others behind them that could start. So when half of the workers wait, the others find
// out who else is there; but not if that is the end of them.
func (a *attempt) patience() time.Duration {
	if (a.policy.Lane != "" || hasOwnSlots(a.policy)) && a.policy.Parks() && a.crowd.isDense() {
		return 0
	}
	return a.policy.Wait()
}

// hasOwnSlots reports whether keys have slots of a concurrency limit each.
func hasOwnSlots(p *policy.Policy) bool {
	return slices.ContainsFunc(p.Limits, func(l policy.Limit) bool {
		return l.Algorithm == policy.Concurrency && l.Per != ""
	})
}

// returnsIn is in how long asynq is to bring a deferred task back by itself. The turn of
// one that stands in line comes when it is woken: this only matters if the line is lost.
func (a *attempt) returnsIn(deferred *throttle.ThrottledError) time.Duration {
	if deferred.Place == nil || deferred.Place.StandsBy {
		return deferred.RetryAfter
	}
	return a.policy.Backstop(deferred.RetryAfter, deferred.HeldBy)
}

// unasked defers a task for which Redis could not be asked: it must not start,
// and must not pay for it.
func (a *attempt) unasked(cause error) error {
	a.log.Warn("could not ask Redis for a slot, task deferred",
		zap.String("policy", a.policy.Name), zap.Error(cause))
	return &throttle.ThrottledError{
		Policy: a.policy.Name, RetryAfter: time.Second, Until: time.Now().Add(time.Second), Cause: cause,
	}
}

// shutdown puts a task back because this process ends.
func (a *attempt) shutdown() error {
	return &throttle.ThrottledError{Policy: a.policy.Name, HeldBy: heldByShutdown, Until: time.Now()}
}

const heldByShutdown = "shutdown"

// until is a context that ends with end, too. What that takes is done when somebody waits
// for it: most tasks start at once.
type until struct {
	context.Context
	end    context.Context
	either context.Context
	cancel context.CancelFunc
	forget func() bool
}

func (u *until) Done() <-chan struct{} {
	if u.either == nil {
		u.either, u.cancel = context.WithCancel(u.Context)
		u.forget = context.AfterFunc(u.end, u.cancel)
	}
	return u.either.Done()
}

func (u *until) Err() error { return cmp.Or(u.Context.Err(), u.end.Err()) }

// stop frees what Done has taken.
func (u *until) stop() {
	if u.either != nil {
		u.forget()
		u.cancel()
	}
}
