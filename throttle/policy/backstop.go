package policy

import (
	"slices"
	"time"
)

const (
	// shortestSlack is how much later than expected a parked task comes back by itself,
	// at least. A woken task goes to the end of asynq's queue, and nobody's slot comes
	// until that is handed out: who came back meanwhile would ask once more for nothing.
	// Of some 200,000 tasks it takes half a minute.
	shortestSlack = 2 * time.Minute
	// longestLack is when a parked task comes back by itself that lacks a slot of a
	// concurrency limit, at most.
	longestLack = 5 * time.Minute
	// longestDelay stands for every delay that is longer: thirty years.
	longestDelay = 30 * MaxPeriod
)

// Backstop is in how long a task comes back by itself that was put into line, in case
// all that is known of the line is lost. It is expected to start after delay, and held
// by that limit.
func (p *Policy) Backstop(delay time.Duration, heldBy string) time.Duration {
	delay = min(delay, longestDelay)
	delay += max(shortestSlack, delay/2)
	if p.LacksSlot(heldBy) {
		// When somebody's lease ends says little: most tasks end long before it.
		delay = min(delay, longestLack)
	}
	return delay
}

// LacksSlot reports whether what holds a task back, as in throttle.Decision.HeldBy, is a
// concurrency limit: when it has a slot nobody knows ahead.
func (p *Policy) LacksSlot(heldBy string) bool {
	return slices.ContainsFunc(p.Limits, func(l Limit) bool {
		return l.Name == heldBy && l.Algorithm == Concurrency
	})
}
