package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
)

// MiddlewareConfig is what a Middleware is made of.
type MiddlewareConfig struct {
	// Limiter decides. Required.
	Limiter *throttle.Limiter
	// Attributes tells a task's attributes. Nil means its headers.
	Attributes func(*asynq.Task) map[string]string
	// Logger hears of tasks that were deferred because Redis could not be asked,
	// and of freezes. Nil means silence.
	Logger *zap.Logger
	// Registerer takes the metrics. Nil means none.
	Registerer prometheus.Registerer
	// MaxRefusals is how often the upstream may refuse the calls of one task, at no
	// charge, before that counts as a failure of the task, of which asynq retries or
	// archives it. Zero means 100.
	MaxRefusals int64
}

// Middleware makes handlers wait for their policy. It is safe for concurrent use
// by any number of servers.
type Middleware struct {
	limiter    *throttle.Limiter
	attributes func(*asynq.Task) map[string]string
	log        *zap.Logger
	metrics    *metrics
	told       sync.Map // what the upstream was last logged to allow, by policy/limit

	maxRefusals int64

	draining context.Context // ends with Drain
	drain    context.CancelFunc
	closed   context.Context // ends with Close
	close    context.CancelFunc
	owned    io.Closer // the connection that Open made; may be nil
}

// NewMiddleware returns a Middleware, or an error when the Limiter is missing or
// the metrics can not be registered.
func NewMiddleware(config MiddlewareConfig) (*Middleware, error) {
	if config.Limiter == nil {
		return nil, errors.New("worker: MiddlewareConfig.Limiter is required")
	}
	m := &Middleware{limiter: config.Limiter, attributes: config.Attributes, log: config.Logger, maxRefusals: config.MaxRefusals}
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
	m.draining, m.drain = context.WithCancel(context.Background())
	m.closed, m.close = context.WithCancel(context.Background())
	return m, nil
}

// Wrap returns a handler that lets a task start next only when the policy of its
// type allows. It is an [asynq.MiddlewareFunc]: mux.Use(m.Wrap). Tasks that no
// route sends to a policy pass straight through.
//
// A task that lacks an attribute, or can never pass, is archived with the reason.
func (m *Middleware) Wrap(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		a := &attempt{Middleware: m, task: task, policy: m.limiter.Config().PolicyFor(task.Type())}
		return a.run(ctx, next)
	})
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
	if m.owned == nil {
		return nil
	}
	return m.owned.Close()
}

// attempt is one attempt of one task.
type attempt struct {
	*Middleware
	task   *asynq.Task
	policy *throttle.Policy // nil when no route matches
	// reservation is what the task was admitted by; nil without a policy.
	reservation *throttle.Reservation
}

// run admits the task and runs it, until there is something to tell asynq.
func (a *attempt) run(ctx context.Context, next asynq.Handler) error {
	for {
		err := a.admit(ctx)
		if err == nil {
			err = a.work(ctx, next)
		}
		if limited := (*throttle.RateLimitedError)(nil); errors.As(err, &limited) {
			// The upstream is right: close the policy for everybody and ask again.
			if err = a.rateLimited(ctx, limited); err == nil {
				continue
			}
		}
		throttled := (*throttle.ThrottledError)(nil)
		if !errors.As(err, &throttled) {
			return err
		}
		if !isLastAttempt(ctx) {
			a.metrics.deferred(throttled)
			return err
		}
		// asynq archives a task that returns an error from its last attempt,
		// whatever the error says. So the task stays here until its time.
		if err := a.stay(ctx, throttled.RetryAfter); err != nil {
			return err
		}
	}
}

// admit returns nil when the task may start now.
func (a *attempt) admit(ctx context.Context) error {
	if a.policy == nil {
		return nil
	}
	if a.draining.Err() != nil {
		return a.shutdown()
	}
	asked := time.Now()
	reservation, err := a.limiter.Reserve(ctx, throttle.Request{
		Policy:     a.policy.Name,
		TaskID:     taskName(ctx),
		Attributes: a.attributes(a.task),
		MaxWait:    a.patience(ctx),
	})
	if err == nil {
		waiting, stop := until(ctx, a.draining)
		if err = reservation.AwaitSlot(waiting); err == nil {
			err = reservation.Wait(waiting)
		}
		stop()
	}
	var (
		attribute *throttle.AttributeError
		never     *throttle.NeverError
		throttled *throttle.ThrottledError
	)
	switch {
	case err == nil:
		a.reservation = reservation
		a.metrics.started(a.policy.Name, time.Since(asked))
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &attribute), errors.As(err, &never):
		a.metrics.refused(a.policy.Name)
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	case errors.As(err, &throttled):
		return a.park(ctx, reservation, throttled)
	case a.draining.Err() != nil:
		return a.shutdown()
	}
	return a.unasked(err)
}

// patience is how long the task may wait here for its slot: as the policy says,
// but on its last attempt as long as the task itself may take.
func (a *attempt) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok && isLastAttempt(ctx) {
		return time.Until(deadline)
	}
	return a.policy.Wait()
}

// park gives a denied task a time of its own to return at. It returns by the
// policy's wait early, for asynq's times are coarse: from then on it waits here
// for its exact slot.
func (a *attempt) park(ctx context.Context, r *throttle.Reservation, denied *throttle.ThrottledError) error {
	if a.lacksSlot(r) {
		return tryAgainSoon(r, denied)
	}
	if r.Outcome != throttle.Denied || isLastAttempt(ctx) {
		return denied
	}
	away, err := a.limiter.Park(ctx, r)
	if err != nil {
		return a.unasked(err)
	}
	denied.Until = r.Now.Add(away)
	denied.RetryAfter = max(0, away-a.policy.Wait())
	return denied
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

// stay holds a task here for d. Once the process is to end, it stays until asynq
// takes the task away from it and puts it back in the queue.
func (a *attempt) stay(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	due := timer.C
	if a.draining.Err() != nil {
		due = nil
	}
	select {
	case <-due:
		return nil
	case <-a.draining.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-a.closed.Done():
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

// until returns a context that ends with either.
func until(ctx, end context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(end, cancel)
	return ctx, func() { stop(); cancel() }
}

// isLastAttempt reports whether asynq will archive the task for any error.
func isLastAttempt(ctx context.Context) bool {
	retried, ok := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	return ok && retried >= most
}
