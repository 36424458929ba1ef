package throttle

import (
	"context"
	"fmt"
	"time"
)

// Freeze closes a policy for d, for every process at once. It never shortens a
// freeze in force; [Limiter.Unfreeze] ends it. Calls in flight are left alone.
func (l *Limiter) Freeze(ctx context.Context, policy string, d time.Duration) error {
	calls, err := l.calls(policy)
	if err != nil {
		return err
	}
	return calls.freeze(ctx, d)
}

// Unfreeze opens a policy that is frozen, for every process at once. Its limits stay
// in force.
func (l *Limiter) Unfreeze(ctx context.Context, policy string) error {
	calls, err := l.calls(policy)
	if err != nil {
		return err
	}
	calls.closures.open("")
	return wrapCall("unfreeze", policy, l.redis.Del(ctx, calls.freezeKey).Err())
}

// FreezeKey closes one key of one limit for d: the key that the request's attributes
// name. Requests for other keys pass. It never shortens a freeze in force.
//
// The policy needs a [policy.Upstream], which keeps what is known of single keys; the error
// says so, or wraps [ErrUnknownPolicy], or is a [*policy.AttributeError].
func (l *Limiter) FreezeKey(ctx context.Context, request Request, limit string, d time.Duration) error {
	return l.closeKey(ctx, request, limit, max(d, time.Microsecond))
}

// UnfreezeKey opens what FreezeKey, or a refusal of the upstream, has closed.
func (l *Limiter) UnfreezeKey(ctx context.Context, request Request, limit string) error {
	return l.closeKey(ctx, request, limit, -1)
}

func (l *Limiter) closeKey(ctx context.Context, request Request, limit string, d time.Duration) error {
	calls, err := l.calls(request.Policy)
	if err != nil {
		return err
	}
	if calls.about == nil {
		return fmt.Errorf("throttle: single keys of policy %q can not be frozen: give it an upstream", request.Policy)
	}
	if err := declared(calls.policy).CheckRated(limit); err != nil {
		return fmt.Errorf("throttle: policy %q: %w", request.Policy, err)
	}
	_, err = l.Reconcile(ctx, request, Observation{Close: map[string]time.Duration{limit: d}})
	return err
}

func (c *policyCalls) freeze(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	c.closures.close("", d)
	err := c.scripts.Freeze.Run(ctx, c.redis, []string{c.freezeKey, c.newMark()}, d.Microseconds()).Err()
	return wrapCall("freeze", c.policy.Name, err)
}
