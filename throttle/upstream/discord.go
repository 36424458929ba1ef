package upstream

// readDiscord reads the quota of the bucket that the reply names. Its fractional
// delta is better than its epoch, which is told beside it. A refusal may be about
// this bucket, or global: about everything this program does.
func readDiscord(r *reader) {
	reset, format := "X-RateLimit-Reset-After", resetFormat(inSeconds)
	if _, ok := r.text(reset); !ok {
		reset, format = "X-RateLimit-Reset", atEpoch
	}
	reading, ok := r.triple("X-RateLimit-Limit", "X-RateLimit-Remaining", reset, format)
	reading.Quota, _ = r.text("X-RateLimit-Bucket")
	if ok {
		r.add(reading)
	}
	refusal := r.answer.Refusal
	if refusal == nil || refusal.Reason != QuotaUsed {
		return
	}
	refusal.Quota = reading.Quota
	global, _ := r.text("X-RateLimit-Global")
	scope, _ := r.text("X-RateLimit-Scope")
	switch {
	case global == "true" || scope == "global":
		refusal.Reason, refusal.Quota = Unavailable, ""
	case scope == "shared":
		refusal.Reason = Abuse // others use up what belongs to all
	}
	if ok {
		r.usedUp(reading)
	}
}
