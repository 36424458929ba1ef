package upstream

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// readers are how each API is read, after what all have in common: the Refusal has
// its RetryAfter already. Windows that no header tells are those that the API documents.
var readers = map[policy.API]func(*reader){
	policy.APIAuto:      readAuto,
	policy.APIGitHub:    readGitHub,
	policy.APIIETF:      readIETF,
	policy.APIShopify:   readShopify,
	policy.APIStripe:    readStripe,
	policy.APIHubSpot:   readHubSpot,
	policy.APISlack:     func(*reader) {}, // nothing else is told
	policy.APIX:         quotas{{headers: "X-Rate-Limit-*", reset: atEpoch, window: 15 * time.Minute}}.read,
	policy.APIOpenAI:    openAI.read,
	policy.APIAnthropic: anthropic.read,
	policy.APIZendesk:   readZendesk,
	policy.APIDiscord:   readDiscord,
	policy.APIJira:      readJira,
}

// OpenAI and Anthropic have buckets: their reset is until they are full.
var (
	openAI = quotas{
		{name: "requests", headers: "X-RateLimit-*-Requests", reset: asDuration, refills: true},
		{name: "tokens", headers: "X-RateLimit-*-Tokens", reset: asDuration, refills: true},
	}
	anthropic = quotas{
		{name: "requests", headers: "Anthropic-RateLimit-Requests-*", reset: atTime, refills: true},
		{name: "tokens", headers: "Anthropic-RateLimit-Tokens-*", reset: atTime, refills: true},
		{name: "input-tokens", headers: "Anthropic-RateLimit-Input-Tokens-*", reset: atTime, refills: true},
		{name: "output-tokens", headers: "Anthropic-RateLimit-Output-Tokens-*", reset: atTime, refills: true},
	}
)

// readAuto goes by the headers that are there. Those listed here belong to one API each;
// X-RateLimit-* belongs to many, and the way its reset is written has to tell which it is.
func readAuto(r *reader) {
	for _, sign := range []struct {
		header string
		read   func(*reader)
	}{
		{"RateLimit", readIETF},
		{"X-Shopify-Shop-Api-Call-Limit", readShopify},
		{"X-HubSpot-RateLimit-Remaining", readHubSpot},
		{"X-HubSpot-RateLimit-Daily-Remaining", readHubSpot},
		{"Anthropic-RateLimit-Requests-Remaining", anthropic.read},
		{"Anthropic-RateLimit-Tokens-Remaining", anthropic.read},
		{"X-RateLimit-Remaining-Requests", openAI.read},
		{"X-RateLimit-Remaining-Tokens", openAI.read},
		{"X-Rate-Limit", readZendesk},
		{"Stripe-Rate-Limited-Reason", readStripe},
		{"X-RateLimit-Bucket", readDiscord},
	} {
		if r.header.Get(sign.header) != "" {
			sign.read(r)
			return
		}
	}
	for _, headers := range []string{"X-RateLimit-*", "X-Rate-Limit-*", "RateLimit-*"} {
		if reading, ok := (quota{headers: headers, reset: anyReset}).reading(r); ok {
			r.add(reading)
			return
		}
	}
}

// A number from firstEpoch on, the year 2001, is no delta, which would be 30 years;
// one from firstEpochMilli on is in milliseconds, or else would be in the year 5138.
const (
	firstEpoch      = 1_000_000_000
	firstEpochMilli = 100_000_000_000
)

// anyReset tells a date, epoch seconds, epoch milliseconds and seconds apart.
func anyReset(r *reader, text string) (time.Duration, bool) {
	if strings.ContainsAny(text, "T:") {
		return atTime(r, text)
	}
	number, err := strconv.ParseFloat(text, 64)
	switch {
	case err == nil && number >= firstEpochMilli && number < 1000*firstEpochMilli:
		return r.until(time.UnixMilli(int64(number)))
	case err == nil && number >= firstEpoch:
		return atEpoch(r, text)
	}
	return inSeconds(r, text)
}

// githubSecondary is how long GitHub asks to wait at a secondary limit that does not say.
const githubSecondary = time.Minute

// readGitHub reads a quota per resource, with its reset in epoch seconds. GitHub
// refuses with 403 as well as with 429, and a 403 is a refusal for quota only if it
// says when to come back or nothing is left. With quota left it was a secondary
// limit, which the headers tell nothing of.
func readGitHub(r *reader) {
	resource := r.text("X-RateLimit-Resource")
	reading, ok := quota{name: resource, headers: "X-RateLimit-*", reset: atEpoch, window: time.Hour}.reading(r)
	// A resource of its own, such as search, has another window, too.
	if reading.Part = resource != "" && resource != "core"; reading.Part {
		reading.Window = 0
	}
	usedUp := ok && reading.Remaining == 0
	if r.status == http.StatusForbidden && (usedUp || r.retryAfter() > 0) {
		r.answer.Refusal = &Refusal{Reason: QuotaUsed, RetryAfter: r.retryAfter()}
	}
	if ok {
		r.add(reading)
	}
	switch refusal := r.quotaRefusal(); {
	case refusal == nil:
	case usedUp:
		refusal.Quota = resource
	default:
		refusal.Reason = Abuse
		refusal.RetryAfter = cmp.Or(refusal.RetryAfter, githubSecondary)
	}
}

// readShopify reads how much of its leaky bucket is *used*, as in 32/40. The bucket takes
// 20 seconds to leak dry, on every plan: 40 calls at 2 a second, 400 at 20.
func readShopify(r *reader) {
	const name = "X-Shopify-Shop-Api-Call-Limit"
	text := r.text(name)
	if text == "" {
		return
	}
	usedText, limitText, _ := strings.Cut(text, "/")
	used, usedOK := parseTokens(usedText)
	limit, limitOK := parseTokens(limitText)
	if !usedOK || !limitOK || limit == 0 {
		r.malformed(name)
		return
	}
	r.add(throttle.Reading{
		Quota: "requests", Limit: limit, Remaining: max(0, limit-used), Window: 20 * time.Second, Refills: true,
	})
}

// readStripe tells Stripe's refusals apart. A 429 without a reason is not about
// quota: somebody else holds the lock of an object.
func readStripe(r *reader) {
	refusal := r.quotaRefusal()
	if refusal == nil {
		return
	}
	reason := r.text("Stripe-Rate-Limited-Reason")
	refusal.Quota = reason
	switch {
	case reason == "" || reason == "resource-specific":
		refusal.Reason = Locked
	case strings.HasSuffix(reason, "-concurrency"):
		refusal.Reason = TooManyAtOnce
	}
}

// readHubSpot reads a rolling interval, whose length is told, and the day, which
// programs that sign in by OAuth are not told of. Neither says when it resets.
func readHubSpot(r *reader) {
	if left, ok := r.whole("X-HubSpot-RateLimit-Remaining"); ok {
		limit, _ := r.whole("X-HubSpot-RateLimit-Max")
		ms, _ := r.whole("X-HubSpot-RateLimit-Interval-Milliseconds")
		r.add(throttle.Reading{
			Quota: "interval", Limit: limit, Remaining: left,
			Window: min(time.Duration(min(ms, mostTokens/1000))*time.Millisecond, Longest),
		})
	}
	if left, ok := r.whole("X-HubSpot-RateLimit-Daily-Remaining"); ok {
		limit, _ := r.whole("X-HubSpot-RateLimit-Daily")
		r.add(throttle.Reading{Quota: "daily", Limit: limit, Remaining: left, Window: 24 * time.Hour})
	}
}

// readZendesk reads the account's quota, under either of its names, and those of
// single endpoints, which can refuse while the account has quota left.
func readZendesk(r *reader) {
	account, ok := r.triple("Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", inSeconds)
	if !ok {
		account, ok = r.triple("X-Rate-Limit", "X-Rate-Limit-Remaining", "Ratelimit-Reset", inSeconds)
	}
	if ok {
		account.Quota, account.Window = "account", time.Minute
		r.add(account)
	}
	for _, name := range slices.Sorted(maps.Keys(r.header)) {
		if quota, ok := strings.CutPrefix(strings.ToLower(name), "zendesk-ratelimit-"); ok {
			r.zendeskEndpoint(name, quota)
		}
	}
}

// zendeskEndpoint reads a header such as "total=100; remaining=99; resets=41".
func (r *reader) zendeskEndpoint(name, quota string) {
	reading := throttle.Reading{Quota: quota, Remaining: -1, Part: true}
	for part := range strings.SplitSeq(r.text(name), ";") {
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
		refusal.RetryAfter = cmp.Or(refusal.RetryAfter, reading.Reset)
	}
}

// readDiscord reads the quota of the bucket that the reply names. Its fractional
// delta is better than its epoch, which is told beside it. A refusal may be about
// this bucket, or global: about everything this program does.
func readDiscord(r *reader) {
	bucket := r.text("X-RateLimit-Bucket")
	if refusal := r.quotaRefusal(); refusal != nil {
		scope := r.text("X-RateLimit-Scope")
		switch {
		case r.text("X-RateLimit-Global") == "true" || scope == "global":
			refusal.Reason = Unavailable
		case scope == "shared":
			refusal.Reason, refusal.Quota = Abuse, bucket // others use up what belongs to all
		default:
			refusal.Quota = bucket
		}
	}
	reset, format := "X-RateLimit-Reset-After", resetFormat(inSeconds)
	if r.text(reset) == "" {
		reset, format = "X-RateLimit-Reset", atEpoch
	}
	if reading, ok := r.triple("X-RateLimit-Limit", "X-RateLimit-Remaining", reset, format); ok {
		reading.Quota = bucket
		r.add(reading)
	}
}

// readJira reads a quota whose reset is written to the minute, and has been seen in
// the past. Several quotas may count; RateLimit-Reason names the one that refused.
func readJira(r *reader) {
	quotas{{headers: "X-RateLimit-*", reset: atTime}}.read(r)
	reason := r.text("RateLimit-Reason")
	if refusal := r.answer.Refusal; refusal != nil && reason != "" {
		refusal.Quota = reason
		if strings.Contains(reason, "per-issue") {
			refusal.Reason = Locked // one issue is written to too often; others are open
		}
	}
}
