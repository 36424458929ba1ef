package upstream

import (
	"strconv"
	"strings"
	"time"
)

// readAuto goes by the headers that are there. The names of the first group belong
// to one API each; X-RateLimit-* belongs to many, and the way its reset is written
// has to tell which it is.
func readAuto(r *reader) {
	has := func(name string) bool { return r.header.Get(name) != "" }
	switch {
	case has("RateLimit"):
		readIETF(r)
	case has("X-Shopify-Shop-Api-Call-Limit"):
		readShopify(r)
	case has("X-HubSpot-RateLimit-Remaining") || has("X-HubSpot-RateLimit-Daily-Remaining"):
		readHubSpot(r)
	case has("Anthropic-RateLimit-Requests-Remaining") || has("Anthropic-RateLimit-Tokens-Remaining"):
		readAnthropic(r)
	case has("X-RateLimit-Remaining-Requests") || has("X-RateLimit-Remaining-Tokens"):
		readOpenAI(r)
	case has("X-Rate-Limit"):
		readZendesk(r)
	case has("Stripe-Rate-Limited-Reason"):
		readStripe(r)
	case has("X-RateLimit-Bucket"):
		readDiscord(r)
	default:
		r.anyTriple("X-RateLimit", "X-Rate-Limit", "RateLimit")
	}
}

// anyTriple reads the first of some families of names that is there.
func (r *reader) anyTriple(families ...string) {
	for _, family := range families {
		reading, ok := r.triple(family+"-Limit", family+"-Remaining", family+"-Reset", anyReset)
		if ok {
			r.add(reading)
			r.usedUp(reading)
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
