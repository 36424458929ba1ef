package worker

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
)

// longestStay is when a task that stays here asks again although nobody called it, and
// how long one stays for which Redis can not be asked; longestStand how long one stands
// by in all.
const (
	longestStay  = 30 * time.Second
	longestStand = 30 * time.Second
)

// stay holds a deferred task here, with its worker, where that is better than to give
// it back to asynq, and reports whether it is to ask again.
//
// A task on its last attempt stays until it is called: asynq archives a task that
// returns an error from that, whatever the error says. Once the process is to end, it
// stays until asynq takes it away and puts it back in the queue. If that would take
// too long, or too many stay, it gets a spare retry instead; see HeaderSpare.
//
// Nor is a task given back for which Redis could not be asked: asynq could not be told,
// either, and would bring it back as one that failed, when its lease is over.
//
// A task that was told to stand by stays until a slot is handed to it. Others that lack
// a slot of a concurrency limit stay for as long as their policy lets them wait, for
// nobody knows when a slot is free; unless too many do.
func (a *attempt) stay(ctx context.Context, deferred *throttle.ThrottledError) (asksAgain bool, err error) {
	isLast := asynqfacts.IsLastAttempt(ctx) && !a.isRejecting(deferred)
	if deferred.Place != nil && deferred.Place.StandsBy {
		asksAgain, err = a.standBy(ctx, deferred, isLast)
		if asksAgain || err != nil || !isLast {
			return asksAgain, err
		}
	}
	if isLast {
		if a.needsSpare(ctx, deferred) {
			err := a.spares.grant(ctx, deferred, a.returnsIn(deferred))
			if errors.Is(err, asynq.RevokeTask) {
				a.metrics.deferred(deferred)
				return false, err
			}
			a.log.Warn("a task on its last attempt has to stay with its worker",
				zap.String("task_id", taskName(ctx)), zap.Error(err))
		}
		until := deferred.RetryAfter
		if deferred.Place != nil {
			until = longestStay
		}
		return true, a.stayForGood(ctx, until)
	}
	if deferred.Cause != nil {
		return a.outlast(ctx, deferred)
	}
	a.cutOff = time.Time{}
	if deferred.Place == nil || !a.lacksSlot(deferred) {
		return false, nil
	}
	if a.leaves.IsZero() {
		a.leaves = time.Now().Add(a.patience())
	}
	return a.stayFor(ctx, time.Until(a.leaves))
}

// standBy holds the task until it is called, and has it ask from time to time as a sign
// of life. In the end it asks to go back into line: a task that was not woken for a slot,
// but has only just come, when its policy lets it wait no longer.
func (a *attempt) standBy(ctx context.Context, deferred *throttle.ThrottledError, isLast bool) (asksAgain bool, err error) {
	if a.leaves.IsZero() {
		stands := longestStand
		if asked := deferred.Until.Add(-deferred.RetryAfter); !deferred.Place.Since.Before(asked) {
			stands = a.patience()
		}
		if isLast {
			stands = math.MaxInt64
		}
		a.leaves = time.Now().Add(stands)
	}
	a.called, err = a.stayFor(ctx, min(line.StandByTime, time.Until(a.leaves)))
	if err != nil || a.draining.Err() != nil {
		a.stepDown(ctx)
		return false, err
	}
	return true, nil
}

// stepDown has a task stand by no more that does not ask again here, and gives back what it
// was handed. Best effort: what it does not give back runs out soon.
func (a *attempt) stepDown(ctx context.Context) {
	stood := a.stands
	if a.stands = nil; stood == nil {
		return
	}
	request := stood.Request()
	request.StandBy, request.MaxDefer, request.Since = false, -1, stood.Place.Since
	last, err := a.limiter.Reserve(context.WithoutCancel(ctx), request)
	if err == nil {
		_ = last.Cancel(ctx)
	}
}

// outlast holds a task for which Redis could not be asked until it is to ask again,
// unless that makes too long in all: the limits may be kept by another Redis than the
// tasks, and others have no part in its outage.
func (a *attempt) outlast(ctx context.Context, deferred *throttle.ThrottledError) (asksAgain bool, err error) {
	if a.cutOff.IsZero() {
		a.cutOff = time.Now()
	}
	if time.Since(a.cutOff)+deferred.RetryAfter > longestStay {
		return false, nil
	}
	_, err = a.stayFor(ctx, deferred.RetryAfter)
	return err == nil && a.draining.Err() == nil, err
}

// mayStandBy reports whether the task may stand by, or may still.
func (a *attempt) mayStandBy() bool { return a.leaves.IsZero() || time.Now().Before(a.leaves) }

// longestHold is how long a task on its last attempt may be expected to stay with its
// worker.
const longestHold = time.Minute

// needsSpare reports whether a task on its last attempt can not stay until its turn.
func (a *attempt) needsSpare(ctx context.Context, deferred *throttle.ThrottledError) bool {
	if deferred.Cause != nil || a.draining.Err() != nil {
		return false // Redis is away, or asynq will take the task back in a moment
	}
	deadline, ok := ctx.Deadline()
	return deferred.RetryAfter > longestHold || ok && time.Until(deadline) < deferred.RetryAfter || a.crowd.isDense()
}

// stayFor holds the task until it is called or policies change, at most for d.
func (a *attempt) stayFor(ctx context.Context, d time.Duration) (called bool, err error) {
	if d <= 0 {
		return false, nil
	}
	defer a.crowd.enter()()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case a.slot = <-a.calls:
		return true, nil
	case <-timer.C:
	case <-a.updated: // there may be more slots
	case <-a.draining.Done():
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return false, nil
}

// stayForGood holds the task until it is called or d is over, or else for good.
func (a *attempt) stayForGood(ctx context.Context, d time.Duration) error {
	if a.draining.Err() == nil {
		defer a.crowd.enter()()
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-a.calls:
			return nil
		case <-timer.C:
			return nil
		case <-a.draining.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case <-a.closed.Done():
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lacksSlot reports whether it was a concurrency limit that held the task back.
func (a *attempt) lacksSlot(deferred *throttle.ThrottledError) bool {
	return a.policy.LacksSlot(deferred.HeldBy)
}
