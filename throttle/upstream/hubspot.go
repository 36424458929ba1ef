package upstream

import (
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

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
