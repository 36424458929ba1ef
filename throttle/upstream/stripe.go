package upstream

import "strings"

// readStripe tells Stripe's refusals apart. A 429 without a reason is not about
// quota: somebody else holds the lock of an object.
func readStripe(r *reader) {
	refusal := r.answer.Refusal
	if refusal == nil || refusal.Reason != QuotaUsed {
		return
	}
	reason, _ := r.text("Stripe-Rate-Limited-Reason")
	refusal.Quota = reason
	switch {
	case reason == "":
		refusal.Reason = Locked
	case strings.HasSuffix(reason, "-concurrency"):
		refusal.Reason = TooManyAtOnce
	case reason == "resource-specific":
		refusal.Reason = Locked
	}
}
