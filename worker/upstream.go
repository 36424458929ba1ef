package worker

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

const (
	freezeTimeout = 3 * time.Second
	// defaultMaxRefusals is how often the upstream may refuse one task before that
	// counts as a failure of the task.
	defaultMaxRefusals = 100
	// aloneFor is how long a task stays away whose refusal concerned it alone and did
	// not say for how long.
	aloneFor = time.Second
)

// rateLimited closes what a refusal of the upstream speaks of, if that is not done
// yet, and returns nil, for the task to ask again. A task without a policy, and one
// that the refusal concerns alone, is only deferred itself. One that was refused too
// often fails, as from any other error.
func (a *attempt) rateLimited(ctx context.Context, limited *throttle.RateLimitedError) error {
	deferred := &throttle.ThrottledError{
		HeldBy:     throttle.HeldByFreeze,
		RetryAfter: limited.RetryAfter,
		Until:      time.Now().Add(limited.RetryAfter),
	}
	if a.policy == nil {
		return deferred
	}
	deferred.Policy = a.policy.Name
	a.metrics.rateLimited(a.policy.Name)
	// The others should know even when this task's time has run out.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
	defer cancel()
	if times, err := a.limiter.CountRefusal(ctx, a.policy.Name, taskName(ctx)); err == nil && times > a.maxRefusals {
		return refusedTooOftenError{limited, times}
	}
	if limited.Alone {
		deferred.HeldBy = heldByUpstream
		deferred.RetryAfter = min(max(limited.RetryAfter, aloneFor), a.policy.Upstream.LongestFreeze())
		deferred.Until = time.Now().Add(deferred.RetryAfter)
		return deferred
	}
	if limited.Heeded {
		return nil
	}
	a.log.Warn("upstream refused a call, policy frozen", zap.String("policy", a.policy.Name),
		zap.String("status", limited.Status), zap.Duration("retry_after", limited.RetryAfter))
	if err := a.limiter.Freeze(ctx, a.policy.Name, limited.RetryAfter); err != nil {
		deferred.Cause = err
		return deferred
	}
	return nil
}

// heldByUpstream: the upstream refused this task's call, and only that.
const heldByUpstream = "upstream"

// settle ends the flight of the call that the task was admitted for, if nobody has
// told what came of it.
func (a *attempt) settle(ctx context.Context, r *throttle.Reservation) {
	if err := r.Settle(ctx); err != nil {
		a.log.Warn("could not tell that a task's call has ended, it counts as in flight for some minutes",
			zap.String("policy", a.policy.Name), zap.Error(err))
	}
}

// heard counts and logs what a response of the upstream said.
func (m *Middleware) heard(report upstream.Report) {
	m.metrics.heard(report)
	policy := m.limiter.Config().Policy(report.Policy)
	if policy == nil {
		return // it was removed while the call was under way
	}
	for name, learned := range report.Heard.Quotas {
		if limit := policy.Limit(name); limit != nil {
			m.learned(policy, limit, learned)
		}
	}
	if report.Heard.SlowedDown {
		m.log.Warn("upstream refuses calls without saying until when, rate cut", zap.String("policy", policy.Name))
	}
	if refusal := report.Refusal; refusal != nil {
		m.log.Warn("upstream refused a call", zap.String("policy", policy.Name),
			zap.Stringer("reason", refusal.Reason), zap.String("quota", refusal.Quota),
			zap.Duration("retry_after", refusal.RetryAfter))
	}
}

// learned logs, once for each number, that the upstream allows less than is declared.
func (m *Middleware) learned(policy *policy.Policy, limit *policy.Limit, learned throttle.Learned) {
	if learned.Limit == 0 || learned.Limit >= limit.Rate.Count {
		return
	}
	before, _ := m.told.Swap(policy.Name+"/"+limit.Name, learned.Limit)
	if before != learned.Limit {
		m.log.Warn("the upstream allows less than the policies file says; its number is used",
			zap.String("policy", policy.Name), zap.String("limit", limit.Name),
			zap.Int64("declared", limit.Rate.Count), zap.Int64("upstream", learned.Limit))
	}
}
