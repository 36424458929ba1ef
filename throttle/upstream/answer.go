package upstream

import (
	"net/http"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Answer is what a response says about its upstream's quotas.
type Answer struct {
	// Date is the upstream's own time, from the Date header; zero without one.
	Date time.Time
	// Quotas are what is left of each quota that the response tells of. Empty for an
	// answer from a cache: its numbers are old.
	Quotas []throttle.Reading
	// Refusal is set if the upstream did not do what was asked because of its quota.
	Refusal *Refusal
	// Malformed names the headers that were there but made no sense, at most once
	// each. They are left out of the above.
	Malformed []string
}

// Refusal is why and for how long an upstream refused a call.
type Refusal struct {
	Reason Reason
	// RetryAfter is how long the upstream wants to be left alone. Zero if it does not
	// say.
	RetryAfter time.Duration
	// Quota names the quota that is used up, as a Reading does. Empty if the response
	// does not say which.
	Quota string
}

// Reason is why an upstream refused a call.
type Reason int

// The reasons to refuse a call.
const (
	// QuotaUsed: too many calls in too short a time, by this caller.
	QuotaUsed Reason = iota + 1
	// TooManyAtOnce: too many calls were running. A lower rate is no remedy.
	TooManyAtOnce
	// Abuse: a limit that watches for abuse, beside the quota that headers tell of.
	Abuse
	// Unavailable: the upstream, or all that this program may do with it, is closed,
	// as for a 503 with Retry-After.
	Unavailable
	// Locked: what the call wanted was taken for the moment. That says nothing about
	// quota; the same call alone is to be made again.
	Locked
)

// String names the reason as metrics and messages do.
func (r Reason) String() string {
	names := [...]string{
		"unknown", QuotaUsed: "quota_used", TooManyAtOnce: "too_many_at_once", Abuse: "abuse",
		Unavailable: "unavailable", Locked: "locked",
	}
	if r < 0 || int(r) >= len(names) {
		r = 0
	}
	return names[r]
}

// Read returns what a response to a call of that API says. It needs the status and
// the headers only and leaves the body alone. now stands in for a missing Date.
//
// It never fails, whatever the headers hold: what makes no sense is left out. All
// numbers of the answer are positive or zero, and no time in it is longer than
// [Longest].
func Read(api policy.API, status int, header http.Header, now time.Time) Answer {
	r := &reader{status: status, header: header, now: now}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		r.now, r.answer.Date = date, date
	}
	read, known := readers[api]
	if !known {
		read = readAuto
	}
	r.refusal()
	read(r)
	if fromCache(header) {
		r.answer.Quotas = nil
	}
	return r.answer
}

// Knows reports whether there is a reader for that API; Read goes by the headers
// that are there, as [policy.APIAuto] does, for others.
func Knows(api policy.API) bool { return readers[api] != nil }

// refusal settles what a status says by itself, for every API.
func (r *reader) refusal() {
	switch {
	case r.status == http.StatusTooManyRequests:
		r.answer.Refusal = &Refusal{Reason: QuotaUsed, RetryAfter: r.retryAfter()}
	case r.status == http.StatusServiceUnavailable && r.header.Get("Retry-After") != "":
		r.answer.Refusal = &Refusal{Reason: Unavailable, RetryAfter: r.retryAfter()}
	}
}

// fromCache reports whether a cache on the way answered, and not the upstream.
func fromCache(header http.Header) bool {
	age := header.Get("Age")
	return age != "" && age != "0"
}
