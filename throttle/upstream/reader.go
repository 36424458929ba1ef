package upstream

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

// Longest is the longest time an Answer tells of; what would be longer is Longest.
const Longest = 366 * 24 * time.Hour

// mostTokens bounds the numbers of tokens that are believed.
const mostTokens = 1_000_000_000_000

// mostQuotas bounds what one response can make anybody do.
const mostQuotas = 32

// reader reads one response.
type reader struct {
	status int
	header http.Header
	now    time.Time // the upstream's
	answer Answer
}

// add adds a reading that makes sense, as far as there is room. A refusal that does not
// say until when ends with the window of a quota that is used up.
func (r *reader) add(reading throttle.Reading) {
	if reading.Limit > 0 {
		reading.Remaining = min(reading.Remaining, reading.Limit)
	}
	if len(r.answer.Quotas) < mostQuotas {
		r.answer.Quotas = append(r.answer.Quotas, reading)
	}
	refusal := r.quotaRefusal()
	if refusal != nil && refusal.RetryAfter == 0 && reading.Remaining == 0 && !reading.Refills {
		refusal.RetryAfter, refusal.Quota = reading.Reset, reading.Quota
	}
}

// quotaRefusal returns the refusal, if it is one for quota as far as is known.
func (r *reader) quotaRefusal() *Refusal {
	if refusal := r.answer.Refusal; refusal != nil && refusal.Reason == QuotaUsed {
		return refusal
	}
	return nil
}

func (r *reader) malformed(name string) {
	name = http.CanonicalHeaderKey(name)
	if !slices.Contains(r.answer.Malformed, name) {
		r.answer.Malformed = append(r.answer.Malformed, name)
	}
}

// text returns a header's value, empty if there is none.
func (r *reader) text(name string) string { return strings.TrimSpace(r.header.Get(name)) }

// whole reads a header that holds a number of tokens. A missing one is no mistake.
func (r *reader) whole(name string) (int64, bool) {
	text := r.text(name)
	if text == "" {
		return 0, false
	}
	n, ok := parseTokens(text)
	if !ok {
		r.malformed(name)
	}
	return n, ok
}

// parseTokens reads digits, and nothing else. What makes no sense is zero.
func parseTokens(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > mostTokens {
		return 0, false
	}
	return n, true
}

// parseSeconds reads digits with at most one point.
func parseSeconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if seconds >= Longest.Seconds() { // infinite when err says it is out of range
		return Longest, true
	}
	return time.Duration(math.Ceil(seconds*1e6)) * time.Microsecond, err == nil
}

// until returns the time from the response's Date until t. What is past by then is
// not told, for no reset is.
func (r *reader) until(t time.Time) (time.Duration, bool) {
	left := t.Sub(r.now)
	return min(left, Longest), left > 0
}

// The ways to say when a quota resets.
type resetFormat func(r *reader, text string) (time.Duration, bool)

// inSeconds is a delta, perhaps with a fraction.
func inSeconds(_ *reader, text string) (time.Duration, bool) { return parseSeconds(text) }

// atEpoch is seconds since 1970, perhaps with a fraction.
func atEpoch(r *reader, text string) (time.Duration, bool) {
	if strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || seconds > 1e11 {
		return 0, false
	}
	return r.until(time.UnixMicro(int64(seconds * 1e6)))
}

// atTime is RFC 3339, or the same to the minute.
func atTime(r *reader, text string) (time.Duration, bool) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if t, err := time.Parse(layout, text); err == nil {
			return r.until(t)
		}
	}
	return 0, false
}

// asDuration is written as in 6m0s or 12ms.
func asDuration(_ *reader, text string) (time.Duration, bool) {
	d, err := time.ParseDuration(text)
	return min(d, Longest), err == nil && d >= 0
}

// reset reads a header that says when a quota resets. One that is missing or makes
// no sense leaves the rest as good as it was.
func (r *reader) reset(name string, format resetFormat) time.Duration {
	text := r.text(name)
	if text == "" {
		return 0
	}
	left, ok := format(r, text)
	if !ok {
		r.malformed(name)
		return 0
	}
	return left
}

// triple reads limit, remaining and reset, each from a header of its own. Without
// remaining there is nothing to tell.
func (r *reader) triple(limit, remaining, reset string, format resetFormat) (throttle.Reading, bool) {
	left, ok := r.whole(remaining)
	if !ok {
		return throttle.Reading{}, false
	}
	most, _ := r.whole(limit)
	return throttle.Reading{Limit: most, Remaining: left, Reset: r.reset(reset, format)}, true
}

// quota is one that has a header each for limit, remaining and reset.
type quota struct {
	name    string
	headers string // with * for those three words
	reset   resetFormat
	window  time.Duration
	refills bool
}

// reading reads the quota, if the response tells of it.
func (q quota) reading(r *reader) (throttle.Reading, bool) {
	header := func(word string) string { return strings.Replace(q.headers, "*", word, 1) }
	reading, ok := r.triple(header("Limit"), header("Remaining"), header("Reset"), q.reset)
	reading.Quota, reading.Window, reading.Refills = q.name, q.window, q.refills
	return reading, ok
}

// quotas are all that an API tells in this way.
type quotas []quota

func (all quotas) read(r *reader) {
	for _, q := range all {
		if reading, ok := q.reading(r); ok {
			r.add(reading)
		}
	}
}

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
