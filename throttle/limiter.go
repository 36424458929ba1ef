package throttle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// callTimeout bounds a script call that no caller's context bounds: a shared
// one, or one that gives something back after its caller has left.
const callTimeout = 5 * time.Second

// Limiter decides on requests by the limits of a Config. It is safe for
// concurrent use; all Limiters with equal policies on one Redis share their
// counts. [Limiter.Update] gives it another Config while it is in use.
type Limiter struct {
	redis    redis.UniversalClient
	updating sync.Mutex // held while the generation is replaced
	inForce  atomic.Pointer[generation]
}

// New returns a Limiter for the policies of config, which must be valid and is
// not to be changed afterwards. The Limiter does not close the client.
func New(client redis.UniversalClient, config *policy.Config) (*Limiter, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	l := &Limiter{redis: client}
	l.inForce.Store(newGeneration(client, config, nil))
	return l, nil
}

// Config returns the Config that is in force.
func (l *Limiter) Config() *policy.Config { return l.inForce.Load().config }

// Redis returns the client that the Limiter was made with.
func (l *Limiter) Redis() redis.UniversalClient { return l.redis }

// Reserve asks for the start of one task, at once or within its MaxWait. A
// granted reservation has taken its cost from every limit of the policy; use
// [Reservation.Wait] before starting, and [Reservation.Cancel] instead of it.
//
// The error is a [*policy.AttributeError] when the task lacks what a limit needs, wraps
// [ErrUnknownPolicy], or says why Redis could not decide. Concurrent calls for
// one policy travel together.
//
// A request with an Attempt can be made again, whatever became of the first: see
// [Request].
func (l *Limiter) Reserve(ctx context.Context, request Request) (*Reservation, error) {
	return l.reserve(ctx, request, 0)
}

// reserve asks for a task that stands in line as if it had come at the instant since,
// in microseconds; zero for now.
func (l *Limiter) reserve(ctx context.Context, request Request, since int64) (*Reservation, error) {
	calls, claim, err := l.claim(request)
	if err != nil {
		return nil, err
	}
	if decision, impossible := claim.impossible(); impossible {
		return &Reservation{Decision: decision, limiter: l, calls: calls, claim: claim}, nil
	}
	claim.since = since
	if since == 0 {
		claim.since = claim.stoodSince()
	}
	r, err := calls.flight.carry(ctx, newPassenger(claim, l))
	return r, wrapCall("reserve", request.Policy, err)
}

// Peek tells what Reserve would answer the same request without a MaxWait, and
// changes nothing. Its errors are Reserve's.
func (l *Limiter) Peek(ctx context.Context, request Request) (Decision, error) {
	calls, claim, err := l.claim(request)
	if err != nil {
		return Decision{}, err
	}
	if decision, impossible := claim.impossible(); impossible {
		return decision, nil
	}
	return calls.peek(ctx, claim)
}

// claim makes a request concrete, with what makes the calls for it.
func (l *Limiter) claim(request Request) (*policyCalls, *claim, error) {
	calls, err := l.calls(request.Policy)
	if err != nil {
		return nil, nil, err
	}
	claim, err := newClaim(calls.policy, request)
	return calls, claim, err
}

// calls returns what makes the calls for a policy; the error wraps ErrUnknownPolicy.
func (l *Limiter) calls(policy string) (*policyCalls, error) {
	calls, ok := l.inForce.Load().policies[policy]
	if !ok {
		return nil, fmt.Errorf("throttle: %w %q", ErrUnknownPolicy, policy)
	}
	return calls, nil
}

// Line returns the waiting line of a policy, for this module's worker. What is left of the
// line of a policy that is not in force can be recalled, and no more. After an Update it
// may be another one.
func (l *Limiter) Line(policy string) *line.Line {
	calls, err := l.calls(policy)
	if err != nil {
		return line.Removed(l.redis, policy, err)
	}
	return calls.line
}

// wrapCall says which call for which policy failed.
func wrapCall(operation, policy string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("throttle: %s in policy %q: %w", operation, policy, err)
}
