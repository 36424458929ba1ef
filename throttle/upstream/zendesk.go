package upstream

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

// zendeskWindow is that of the account's quota.
const zendeskWindow = time.Minute

// readZendesk reads the account's quota, under either of its names, and those of
// single endpoints, which can refuse while the account has quota left.
func readZendesk(r *reader) {
	account, ok := r.triple("Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", inSeconds)
	if !ok {
		account, ok = r.triple("X-Rate-Limit", "X-Rate-Limit-Remaining", "Ratelimit-Reset", inSeconds)
	}
	if ok {
		account.Quota, account.Window = "account", zendeskWindow
		r.add(account)
		r.usedUp(account)
	}
	for _, name := range slices.Sorted(maps.Keys(r.header)) {
		if quota, ok := strings.CutPrefix(strings.ToLower(name), "zendesk-ratelimit-"); ok {
			r.zendeskEndpoint(name, quota)
		}
	}
}

// zendeskEndpoint reads a header such as "total=100; remaining=99; resets=41".
func (r *reader) zendeskEndpoint(name, quota string) {
	text, _ := r.text(name)
	reading := throttle.Reading{Quota: quota, Remaining: -1, Part: true}
	for _, part := range strings.Split(text, ";") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		number, ok := parseTokens(value)
		switch {
		case !ok:
			r.malformed(name)
			return
		case key == "total":
			reading.Limit = number
		case key == "remaining":
			reading.Remaining = number
		case key == "resets":
			reading.Reset, _ = parseSeconds(value)
		}
	}
	if reading.Remaining < 0 {
		r.malformed(name)
		return
	}
	r.add(reading)
	if refusal := r.answer.Refusal; refusal != nil && reading.Remaining == 0 {
		refusal.Quota = quota
		if refusal.RetryAfter == 0 {
			refusal.RetryAfter = reading.Reset
		}
	}
}
