package throttletest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
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
	failures []answer  // that FailNext put in the quota's place
	closed   time.Time // until when every call is refused
	calls    []Call    // in order of arrival
	count    int
	over     int
	accepted int
	// arrived is closed, and replaced, at every call.
	arrived chan struct{}
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
		u.failures = append(u.failures, answer{status, header.Clone(), http.StatusText(status)})
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

// answer is what a call gets.
type answer struct {
	status  int
	header  http.Header
	message string
}

// ServeHTTP answers 200, or 429 with Retry-After when the quota is used up, both
// with GitHub's quota headers; or what FailNext asked for.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := u.record(r)
	select {
	case <-time.After(u.cfg.Latency):
	case <-r.Context().Done():
		return // nobody is left to hear the answer
	}
	for name, values := range a.header {
		w.Header()[http.CanonicalHeaderKey(name)] = values
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(a.status)
	// A caller that hangs up now misses nothing but its own answer.
	_, _ = fmt.Fprintf(w, "{\"message\":%q}\n", a.message)
}

// record counts a call and settles its answer, in one step, so that the order of
// the records is the order in which the quota saw them.
func (u *Upstream) record(r *http.Request) answer {
	u.mu.Lock()
	defer u.mu.Unlock()

	call := Call{
		Arrived: u.cfg.Now(),
		Key:     u.keyOf(r),
		TaskID:  r.Header.Get("X-Task-Id"),
		Method:  r.Method,
		URL:     r.URL.RequestURI(),
	}
	a := u.settle(&call)
	call.Status = a.status

	u.count++
	u.calls = append(u.calls, call)
	// Dropping half of the slice at a time keeps the cost per call constant.
	if keep := u.cfg.Keep; keep > 0 && len(u.calls) >= 2*keep {
		u.calls = slices.Clone(u.latest())
	}
	close(u.arrived)
	u.arrived = make(chan struct{})
	return a
}

func (u *Upstream) keyOf(r *http.Request) string {
	if u.cfg.Key == "" {
		return ""
	}
	if v := r.Header.Get(u.cfg.Key); v != "" {
		return v
	}
	return r.URL.Query().Get(u.cfg.Key)
}

// settle decides what a call gets and counts it as accepted, over or neither.
func (u *Upstream) settle(call *Call) answer {
	if len(u.failures) > 0 {
		failure := u.failures[0]
		u.failures = u.failures[1:]
		return failure
	}
	if left := u.closed.Sub(call.Arrived); left > 0 {
		header := http.Header{"Retry-After": {strconv.FormatInt(wholeSeconds(left), 10)}}
		return answer{status: http.StatusTooManyRequests, header: header, message: "come back later"}
	}
	if u.cfg.Quota == nil {
		u.accepted++
		return answer{status: http.StatusOK, message: "done"}
	}
	v := u.meter(call.Key).take(call.Arrived)
	header := http.Header{}
	if !u.cfg.Silent {
		header = v.header()
	}
	if !v.passed {
		u.over++
		call.Over = true
		if !u.cfg.Silent {
			header.Set("Retry-After", strconv.FormatInt(wholeSeconds(v.retryAfter), 10))
		}
		return answer{status: http.StatusTooManyRequests, header: header, message: "API rate limit exceeded"}
	}
	u.accepted++
	return answer{status: http.StatusOK, header: header, message: "done"}
}

// meter returns what counts a key's calls. It needs the lock.
func (u *Upstream) meter(key string) meter {
	m, ok := u.meters[key]
	if !ok {
		m = u.cfg.Quota.newMeter()
		u.meters[key] = m
	}
	return m
}

// header tells how the quota stands in GitHub's way, and a bucket in OpenAI's.
func (v *verdict) header() http.Header {
	h := http.Header{}
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(v.limit, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(v.remaining, 10))
	h.Set("X-Ratelimit-Used", strconv.FormatInt(v.limit-v.remaining, 10))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(wholeSeconds(v.reset.Sub(time.Unix(0, 0))), 10))
	h.Set("X-Ratelimit-Resource", "core")
	if v.refillIn > 0 {
		// A bucket is told as OpenAI does, too: its reset is when it is full.
		h.Set("X-Ratelimit-Limit-Requests", strconv.FormatInt(v.limit, 10))
		h.Set("X-Ratelimit-Remaining-Requests", strconv.FormatInt(v.remaining, 10))
		h.Set("X-Ratelimit-Reset-Requests", v.refillIn.String())
	}
	return h
}

// wholeSeconds rounds up, so that whoever waits that long has waited long enough.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
