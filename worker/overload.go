package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// checkFallbacks tells which policy degrades to nothing, and which fallback is for no
// policy.
func checkFallbacks(policies *policy.Config, fallbacks map[string]asynq.Handler) error {
	problems := []error{checkDegrading(policies, fallbacks)}
	for _, name := range slices.Sorted(maps.Keys(fallbacks)) {
		if policies.Policy(name) == nil {
			problems = append(problems, fmt.Errorf("worker: there is a fallback for %q, but no such policy", name))
		}
	}
	return errors.Join(problems...)
}

// checkDegrading tells which policy degrades to nothing. There may be more fallbacks than
// policies after an update.
func checkDegrading(policies *policy.Config, fallbacks map[string]asynq.Handler) error {
	var problems []error
	for i := range policies.Policies {
		p := &policies.Policies[i]
		if p.Strategy() == policy.OverloadDegrade && fallbacks[p.Name] == nil {
			problems = append(problems, fmt.Errorf("worker: policy %q has overload: degrade, but there is no fallback for it; "+
				"register one as MiddlewareConfig.Fallbacks[%q], or choose another strategy", p.Name, p.Name))
		}
	}
	return errors.Join(problems...)
}

// reserveInTime asks for the task's slot, and takes the task out of line again where
// its deadline can not be met.
func (a *attempt) reserveInTime(ctx context.Context) (*throttle.Reservation, error) {
	maxDefer := a.policy.LongestDefer()
	switch {
	case a.lastCall:
		maxDefer = -1
	case a.parks:
		maxDefer = 0
	}
	reservation, err := a.reserve(ctx, maxDefer)
	throttled := (*throttle.ThrottledError)(nil)
	if !errors.As(err, &throttled) || throttled.Place == nil {
		return reservation, err
	}
	deadline, missed := a.missedDeadline(ctx, throttled)
	if !missed {
		return reservation, err
	}
	now := throttled.Until.Add(-throttled.RetryAfter)
	reservation, err = a.reserve(ctx, max(time.Microsecond, deadline.Sub(now)))
	if overload := (*throttle.OverloadError)(nil); errors.As(err, &overload) {
		overload.Deadline, overload.MaxDefer = deadline, 0
	}
	return reservation, err
}

// missedDeadline returns the deadline of a task in line that is expected to start after
// it. The context's deadline may be nearer, because it bounds this attempt, too; so only
// a task that is later than that is looked up. Nor is one that can have no deadline.
func (a *attempt) missedDeadline(ctx context.Context, deferred *throttle.ThrottledError) (time.Time, bool) {
	ends, bounded := ctx.Deadline()
	if !bounded || !asynqfacts.MayBeDeadline(ends) || !deferred.Until.After(ends) || a.lacksSlot(deferred) {
		return time.Time{}, false
	}
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	info, err := a.dispatcher.inspector.GetTaskInfo(queue, id)
	if err != nil {
		return time.Time{}, false // then asynq will see to it
	}
	return info.Deadline, !info.Deadline.IsZero() && deferred.Until.After(info.Deadline)
}

// longestWait is how long the task may wait here for its slot: not beyond its own time,
// in which asynq would fail it.
func (a *attempt) longestWait(ctx context.Context) time.Duration {
	wait := a.patience()
	if a.policy.MaxDefer > 0 {
		wait = min(wait, a.policy.MaxDefer)
	}
	if ends, bounded := ctx.Deadline(); bounded {
		wait = min(wait, max(0, time.Until(ends)))
	}
	return wait
}

// overloaded decides on a task that was turned away. It returns nil if a fallback is to
// run, and asks again if the task is to stand in line nevertheless.
func (a *attempt) overloaded(ctx context.Context, overload *throttle.OverloadError) error {
	strategy := a.strategy(ctx, overload)
	switch {
	case strategy == policy.OverloadPark && overload.Deadline.IsZero() && a.onOverload != nil && !a.parks:
		a.parks, a.lastCall = true, false
		return a.admit(ctx)
	case strategy == policy.OverloadPark:
		strategy = policy.OverloadReject
	case strategy == policy.OverloadDegrade && a.fallbacks[a.policy.Name] == nil:
		a.log.Error("a policy degrades that has no fallback, task rejected; see MiddlewareConfig.Fallbacks",
			zap.String("policy", a.policy.Name))
		strategy = policy.OverloadReject
	}
	a.metrics.overloaded(a.policy.Name, strategy)
	switch strategy {
	case policy.OverloadDrop:
		return fmt.Errorf("%w: %w", overload, asynq.RevokeTask)
	case policy.OverloadDegrade:
		a.reservation, a.handler = nil, a.fallbacks[a.policy.Name]
		return nil
	case policy.OverloadPark, policy.OverloadReject:
	}
	return fmt.Errorf("%w: %w", overload, asynq.SkipRetry)
}

// strategy returns what is to be done with the task, by the program or by its policy.
func (a *attempt) strategy(ctx context.Context, overload *throttle.OverloadError) policy.Overload {
	if a.onOverload == nil {
		return a.policy.Strategy()
	}
	switch chosen := a.onOverload(ctx, a.task, overload); chosen {
	case policy.OverloadPark, policy.OverloadReject, policy.OverloadDrop:
		return chosen
	case policy.OverloadDegrade:
		if a.fallbacks[a.policy.Name] != nil {
			return chosen
		}
		a.log.Error("OnOverload degrades a task of a policy that has no fallback, which its own strategy is used for",
			zap.String("policy", a.policy.Name))
	default:
		a.log.Error("OnOverload returned no strategy, the policy's own is used",
			zap.String("policy", a.policy.Name), zap.String("returned", string(chosen)))
	}
	return a.policy.Strategy()
}

// isRejecting reports whether a task in line only waits here for a slot of a concurrency
// limit, and is given up if it gets none.
func (a *attempt) isRejecting(deferred *throttle.ThrottledError) bool {
	return deferred.Place != nil && !a.parks && a.policy != nil && !a.policy.Parks()
}

// isGivenUp reports whether a task that has waited here for as long as its policy lets
// it is to ask a last time.
func (a *attempt) isGivenUp(deferred *throttle.ThrottledError) bool {
	return a.isRejecting(deferred) && !a.lastCall && a.draining.Err() == nil
}

// isDropped reports whether an error removes a task that was turned away.
func isDropped(err error) bool {
	overload := (*throttle.OverloadError)(nil)
	return errors.Is(err, asynq.RevokeTask) && errors.As(err, &overload)
}
