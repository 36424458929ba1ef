package throttletest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

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
	if !wait(r.Context(), u.cfg.Latency) {
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
		f := u.failures[0]
		u.failures = u.failures[1:]
		return answer{status: f.status, header: f.header, message: http.StatusText(f.status)}
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
func wholeSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// wait reports whether d went by before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
