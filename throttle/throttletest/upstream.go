package throttletest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// UpstreamConfig says what an Upstream allows and how it answers. The zero value
// allows everything and records it.
type UpstreamConfig struct {
	// Quota is what each key may use. Nil means no quota: record only.
	Quota *Quota
	// Key names the request header, or else the query parameter, whose values have
	// a quota each. Empty means one quota for all.
	Key string
	// Silent makes the upstream tell nothing of its quota: no headers, and 429s that do
	// not say until when.
	Silent bool
	// Latency is how long an answer takes, in real time. The call counts from its
	// arrival.
	Latency time.Duration
	// Keep is how many of the latest calls Calls returns, for an upstream that runs
	// for long. Zero keeps all; the counts are of all calls in any case.
	Keep int
	// Now is the upstream's own clock. Nil means time.Now.
	Now func() time.Time
}

// Call is what an Upstream remembers of one call.
type Call struct {
	// Arrived is when the call was counted, by the upstream's clock.
	Arrived time.Time
	// Key is the value of what UpstreamConfig.Key names; empty if it names nothing.
	Key string
	// TaskID is the request's X-Task-Id header; may be empty.
	TaskID string
	// Method and URL are the request's; URL is path and query.
	Method, URL string
	// Status is the answer's.
	Status int
	// Over tells that the quota was used up: the call should not have been made.
	Over bool
}

// Upstream is somebody else's API: it enforces its quota by its own clock, answers
// as GitHub does, and records every call. It is safe for concurrent use and has no
// goroutines of its own.
type Upstream struct {
	cfg UpstreamConfig

	mu       sync.Mutex
	meters   map[string]meter
	failures []failure
	closed   time.Time // until when every call is refused
	calls    []Call    // in order of arrival
	count    int
	over     int
	accepted int
	// arrived is closed, and replaced, at every call.
	arrived chan struct{}
}

// failure is an answer that FailNext put in the quota's place.
type failure struct {
	status int
	header http.Header
}

// NewUpstream checks cfg and returns an upstream that nobody has called yet. The
// error names every problem.
func NewUpstream(cfg UpstreamConfig) (*Upstream, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	var problems []error
	if cfg.Latency < 0 {
		problems = append(problems, fmt.Errorf("latency is %s; it must not be negative", cfg.Latency))
	}
	if cfg.Keep < 0 {
		problems = append(problems, fmt.Errorf("keep is %d; it must not be negative", cfg.Keep))
	}
	if cfg.Quota != nil {
		problems = append(problems, cfg.Quota.validate())
		quota := *cfg.Quota
		if quota.Start.IsZero() {
			quota.Start = cfg.Now()
		}
		cfg.Quota = &quota
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	return &Upstream{cfg: cfg, meters: map[string]meter{}, arrived: make(chan struct{})}, nil
}

// FailNext answers the next n calls with that status and these headers, once the
// failures asked for before have been used up. Such a call is recorded; it takes
// nothing from the quota, is neither accepted nor over, and is told nothing of the
// quota.
func (u *Upstream) FailNext(n, status int, header http.Header) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range n {
		u.failures = append(u.failures, failure{status: status, header: header.Clone()})
	}
}

// CloseFor refuses every call from now on for d, with 429 and a Retry-After that tells
// how long that still is, whatever the quota. Such a call is recorded as one that
// FailNext answered.
func (u *Upstream) CloseFor(d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = u.cfg.Now().Add(d)
}

// Spend takes n calls from a key's quota, as another program does that the limiter
// under test knows nothing of, and returns how many it got. They are not recorded.
func (u *Upstream) Spend(key string, n int) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	got := 0
	for range n {
		if u.cfg.Quota == nil || u.meter(key).take(u.cfg.Now()).passed {
			got++
		}
	}
	return got
}

// Calls returns what was recorded, in order of arrival.
func (u *Upstream) Calls() []Call {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.latest())
}

// latest is what is to be kept of the calls. It needs the lock.
func (u *Upstream) latest() []Call {
	if over := len(u.calls) - u.cfg.Keep; u.cfg.Keep > 0 && over > 0 {
		return u.calls[over:]
	}
	return u.calls
}

// Arrivals returns when each of Calls arrived, as the judging functions take it.
func (u *Upstream) Arrivals() []time.Time {
	calls := u.Calls()
	times := make([]time.Time, len(calls))
	for i, c := range calls {
		times[i] = c.Arrived
	}
	return times
}

// Count is how many calls came: those accepted, those over, and those that
// FailNext answered.
func (u *Upstream) Count() int { return u.read(&u.count) }

// Accepted is how many calls the quota passed.
func (u *Upstream) Accepted() int { return u.read(&u.accepted) }

// Over is how many calls were made although the quota was used up.
func (u *Upstream) Over() int { return u.read(&u.over) }

func (u *Upstream) read(n *int) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return *n
}

// WaitCalls returns nil as soon as n calls have arrived since the upstream was
// made. If ctx ends before, the error wraps ctx's and tells how many there were.
func (u *Upstream) WaitCalls(ctx context.Context, n int) error {
	for {
		u.mu.Lock()
		count, arrived := u.count, u.arrived
		u.mu.Unlock()
		if count >= n {
			return nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return fmt.Errorf("waited for %d calls, saw %d: %w", n, count, ctx.Err())
		}
	}
}
