package httprequest

import (
	"context"
	"net/http"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// heed has the shared state corrected by what a response says, if the task's policy
// has an upstream, and returns the error of a call that was refused, or nil.
func (h *handler) heed(ctx context.Context, resp *http.Response, sent time.Time) error {
	status := resp.StatusCode
	limited := &throttle.RateLimitedError{Status: resp.Status, RetryAfter: h.retryAfter(resp.Header, time.Now())}
	reservation, ok := throttle.FromContext(ctx)
	if !ok || reservation.Terms().Upstream == nil {
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "" {
			return limited
		}
		return nil
	}
	report, err := upstream.Heed(ctx, reservation, upstream.Call{
		Sent: sent, Received: time.Now(), Status: status, Header: resp.Header,
	})
	if report.Refusal == nil {
		return nil // what Redis did not hear, the next response says again
	}
	if err != nil {
		return limited
	}
	return report.RateLimited(resp.Status)
}

// retryAfter is how long an answer asks to stay away. now stands in for a missing
// Date header. What makes no sense counts as not said, and so does zero.
func (h *handler) retryAfter(header http.Header, now time.Time) time.Duration {
	wait, ok := upstream.RetryAfter(header, now)
	if !ok {
		return h.cfg.DefaultRetryAfter
	}
	return min(wait, h.cfg.MaxRetryAfter)
}
