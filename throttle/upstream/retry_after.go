package upstream

import (
	"net/http"
	"strings"
	"time"
)

// RetryAfter reads how long a response asks to stay away: seconds, possibly with a
// fraction, or a date, which counts from the response's own Date, so that the two
// clocks need not agree; now stands in for a missing one. It is never longer than
// [Longest]. It reports false for what is missing, past or makes no sense, and for
// zero, which would have a task call again and again at no price.
func RetryAfter(header http.Header, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if wait, ok := parseSeconds(text); ok {
		return wait, wait > 0
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if sent, err := http.ParseTime(header.Get("Date")); err == nil {
		now = sent
	}
	wait := at.Sub(now)
	return min(wait, Longest), wait > 0
}

// retryAfter is RetryAfter, or zero, and names what made no sense.
func (r *reader) retryAfter() time.Duration {
	wait, ok := RetryAfter(r.header, r.now)
	if ok {
		return wait
	}
	if r.text("Retry-After") != "" {
		r.malformed("Retry-After")
	}
	return 0
}
