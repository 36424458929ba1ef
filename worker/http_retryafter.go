package worker

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfter reads how long an answer asks to stay away: seconds, possibly with
// a fraction, or a date. now stands in for a missing Date header. What makes no
// sense counts as not said, and so does zero: it would have the task call again
// and again at no price.
func (h *httpHandler) retryAfter(header http.Header, now time.Time) time.Duration {
	wait, ok := parseRetryAfter(strings.TrimSpace(header.Get("Retry-After")), header.Get("Date"), now)
	if !ok || wait <= 0 {
		return h.cfg.DefaultRetryAfter
	}
	return min(wait, h.cfg.MaxRetryAfter)
}

// parseRetryAfter returns false for a value that is neither seconds nor a date.
// A date counts from the answer's own Date, so that the two clocks need not
// agree.
func parseRetryAfter(value, date string, now time.Time) (time.Duration, bool) {
	if strings.Trim(value, "0123456789.") == "" {
		return parseSeconds(value)
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if sent, err := http.ParseTime(date); err == nil {
		now = sent
	}
	return until.Sub(now), true
}

// parseSeconds reads digits with at most one point. What is more than a
// Duration holds becomes the longest it does hold.
func parseSeconds(value string) (time.Duration, bool) {
	const longest = time.Duration(1<<63 - 1)
	seconds, err := strconv.ParseFloat(value, 64)
	switch {
	case seconds >= longest.Seconds(): // infinite when err says it is out of range
		return longest, true
	case err != nil:
		return 0, false
	}
	return time.Duration(seconds*float64(time.Second) + 0.5), true
}
