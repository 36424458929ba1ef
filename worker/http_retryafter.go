package worker

import (
	"net/http"
	"time"

	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// retryAfter is how long an answer asks to stay away. now stands in for a missing
// Date header. What makes no sense counts as not said, and so does zero.
func (h *httpHandler) retryAfter(header http.Header, now time.Time) time.Duration {
	wait, ok := upstream.RetryAfter(header, now)
	if !ok {
		return h.cfg.DefaultRetryAfter
	}
	return min(wait, h.cfg.MaxRetryAfter)
}
