package upstream

import (
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

// shopifyWindow is how long Shopify's bucket takes to leak dry, on every plan: 40
// calls at 2 a second, 400 at 20.
const shopifyWindow = 20 * time.Second

// readShopify reads how much of its leaky bucket is *used*, as in 32/40.
func readShopify(r *reader) {
	const name = "X-Shopify-Shop-Api-Call-Limit"
	text, ok := r.text(name)
	if !ok {
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
		Quota: "requests", Limit: limit, Remaining: max(0, limit-used), Window: shopifyWindow, Refills: true,
	})
}

// readOpenAI reads two buckets; reset is until they are full.
func readOpenAI(r *reader) {
	for _, quota := range []string{"Requests", "Tokens"} {
		r.bucket(strings.ToLower(quota), "X-RateLimit-Limit-"+quota, "X-RateLimit-Remaining-"+quota,
			"X-RateLimit-Reset-"+quota, asDuration)
	}
}

// readAnthropic reads up to four buckets; reset is when they are full.
func readAnthropic(r *reader) {
	for _, quota := range []string{"Requests", "Tokens", "Input-Tokens", "Output-Tokens"} {
		start := "Anthropic-RateLimit-" + quota
		r.bucket(strings.ToLower(quota), start+"-Limit", start+"-Remaining", start+"-Reset", atTime)
	}
}

// bucket reads a quota that comes back bit by bit.
func (r *reader) bucket(quota, limit, remaining, reset string, format resetFormat) {
	reading, ok := r.triple(limit, remaining, reset, format)
	if !ok {
		return
	}
	reading.Quota, reading.Refills = quota, true
	r.add(reading)
}
