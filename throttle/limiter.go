package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// callTimeout bounds a script call that no caller's context bounds: a shared
// one, or one that gives something back after its caller has left.
const callTimeout = 5 * time.Second

// Limiter decides on requests by the limits of a Config. It is safe for
// concurrent use; all Limiters with equal policies on one Redis share their
// counts.
type Limiter struct {
	redis    redis.UniversalClient
	config   *Config
	policies map[string]*policyCalls
}

// New returns a Limiter for the policies of config, which must be valid and is
// not to be changed afterwards. The Limiter does not close the client.
func New(client redis.UniversalClient, config *Config) (*Limiter, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	l := &Limiter{redis: client, config: config, policies: map[string]*policyCalls{}}
	for i := range config.Policies {
		policy := &config.Policies[i]
		l.policies[policy.Name] = newPolicyCalls(client, policy.complete())
	}
	return l, nil
}

// Config returns the Config the Limiter was made with.
func (l *Limiter) Config() *Config { return l.config }

// Redis returns the client that the Limiter was made with.
func (l *Limiter) Redis() redis.UniversalClient { return l.redis }

// Reserve asks for the start of one task, at once or within its MaxWait. A
// granted reservation has taken its cost from every limit of the policy; use
// [Reservation.Wait] before starting, and [Reservation.Cancel] instead of it.
//
// The error is an [*AttributeError] when the task lacks what a limit needs, wraps
// [ErrUnknownPolicy], or says why Redis could not decide. Concurrent calls for
// one policy travel together.
//
// A request with an Attempt can be made again, whatever became of the first: see
// [Request].
func (l *Limiter) Reserve(ctx context.Context, request Request) (*Reservation, error) {
	claim, err := l.claim(request)
	if err != nil {
		return nil, err
	}
	if decision, impossible := claim.impossible(); impossible {
		return &Reservation{Decision: decision, limiter: l, claim: claim}, nil
	}
	return l.policies[request.Policy].reserve(ctx, l, claim)
}

// Peek tells what Reserve would answer the same request without a MaxWait, and
// changes nothing. Its errors are Reserve's.
func (l *Limiter) Peek(ctx context.Context, request Request) (Decision, error) {
	claim, err := l.claim(request)
	if err != nil {
		return Decision{}, err
	}
	if decision, impossible := claim.impossible(); impossible {
		return decision, nil
	}
	return l.policies[request.Policy].peek(ctx, claim)
}

func (l *Limiter) claim(request Request) (*claim, error) {
	calls, ok := l.policies[request.Policy]
	if !ok {
		return nil, unknownPolicy(request.Policy)
	}
	return newClaim(calls.policy, request)
}

func unknownPolicy(name string) error {
	return fmt.Errorf("throttle: %w %q", ErrUnknownPolicy, name)
}

// wrapCall says which call for which policy failed.
func wrapCall(operation, policy string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("throttle: %s in policy %q: %w", operation, policy, err)
}
