package upstream

import (
	"net/http"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

// The windows that these APIs document but do not send.
const (
	githubWindow = time.Hour
	xWindow      = 15 * time.Minute
	// githubSecondary is how long GitHub asks to wait at a secondary limit that does
	// not say.
	githubSecondary = time.Minute
)

// readGitHub reads a quota per resource, with its reset in epoch seconds. GitHub
// refuses with 403 as well as with 429, and a 403 is a refusal for quota only if it
// says when to come back or nothing is left. With quota left it was a secondary
// limit, which the headers tell nothing of.
func readGitHub(r *reader) {
	reading, ok := r.triple("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", atEpoch)
	reading.Quota, _ = r.text("X-RateLimit-Resource")
	reading.Window = githubWindow
	// A resource of its own, such as search, has another window, too.
	if reading.Part = reading.Quota != "" && reading.Quota != "core"; reading.Part {
		reading.Window = 0
	}
	if ok {
		r.add(reading)
	}
	usedUp := ok && reading.Remaining == 0
	if r.status == http.StatusForbidden && (usedUp || r.retryAfter() > 0) {
		r.answer.Refusal = &Refusal{Reason: QuotaUsed, RetryAfter: r.retryAfter()}
	}
	refusal := r.answer.Refusal
	if refusal == nil || refusal.Reason != QuotaUsed {
		return
	}
	switch {
	case usedUp:
		refusal.Quota = reading.Quota
		if refusal.RetryAfter == 0 {
			refusal.RetryAfter = reading.Reset
		}
	default:
		refusal.Reason = Abuse
		if refusal.RetryAfter == 0 {
			refusal.RetryAfter = githubSecondary
		}
	}
}

// readX reads a quota per endpoint, with its reset in epoch seconds. X has another
// hyphen in its names than the rest.
func readX(r *reader) {
	reading, ok := r.triple("X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", atEpoch)
	if !ok {
		return
	}
	reading.Window = xWindow
	r.add(reading)
	r.usedUp(reading)
}

// usedUp lets a refusal that does not say until when end with the quota that is
// used up.
func (r *reader) usedUp(reading throttle.Reading) {
	refusal := r.answer.Refusal
	if refusal != nil && refusal.Reason == QuotaUsed && refusal.RetryAfter == 0 && reading.Remaining == 0 {
		refusal.RetryAfter, refusal.Quota = reading.Reset, reading.Quota
	}
}

// readJira reads a quota whose reset is written to the minute, and has been seen in
// the past. Several quotas may count; RateLimit-Reason names the one that refused.
func readJira(r *reader) {
	reading, ok := r.triple("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", atTime)
	if ok {
		r.add(reading)
		r.usedUp(reading)
	}
	reason, _ := r.text("RateLimit-Reason")
	if refusal := r.answer.Refusal; refusal != nil && reason != "" {
		refusal.Quota = reason
		if strings.Contains(reason, "per-issue") {
			refusal.Reason = Locked // one issue is written to too often; others are open
		}
	}
}
