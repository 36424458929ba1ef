package policy

import (
	"cmp"
	"slices"
	"time"
)

// Overload names a strategy for overload: what becomes of a task whose start is
// further off than its policy's MaxDefer, or comes after the task's own deadline.
// Without a MaxDefer, any strategy but OverloadPark acts as soon as a task would have
// to be parked.
//
// What nobody can tell is no overload: a task that only lacks a slot of a concurrency
// limit may get one at any moment. For OverloadPark and where there is a MaxDefer it
// is parked; else it waits in its worker for MaxWait first.
type Overload string

// The strategies.
const (
	// OverloadPark has tasks stand in line. One that can not, because its start is
	// further off than a MaxDefer or comes after its deadline, is rejected. The
	// default.
	OverloadPark Overload = "park"
	// OverloadReject archives the task with a throttle.OverloadError, at once and
	// whatever retries it has left.
	OverloadReject Overload = "reject"
	// OverloadDrop removes the task, as if it had never been, and counts it.
	OverloadDrop Overload = "drop"
	// OverloadDegrade runs a fallback in place of the task's handler.
	OverloadDegrade Overload = "degrade"
)

// The bounds of MaxDefer.
const (
	// MinMaxDefer is the shortest MaxDefer. It lets no request join the waiting line but
	// those for which time alone does not tell when they pass.
	MinMaxDefer = time.Microsecond
	// MaxMaxDefer is the longest MaxDefer: what is further off than the longest period is
	// no delay but a mistake.
	MaxMaxDefer = MaxPeriod
)

// Strategy returns Overload with its default applied.
func (p *Policy) Strategy() Overload { return cmp.Or(p.Overload, OverloadPark) }

// Parks reports whether tasks of the policy are parked at all.
func (p *Policy) Parks() bool { return p.Strategy() == OverloadPark || p.MaxDefer > 0 }

// LongestDefer is the MaxDefer of requests for the policy's tasks: zero for no bound,
// and MinMaxDefer where the policy parks no tasks.
func (p *Policy) LongestDefer() time.Duration {
	if !p.Parks() {
		return MinMaxDefer
	}
	return p.MaxDefer
}

func (f *findings) overload(path string, p *Policy) {
	if p.Overload != "" {
		f.check(join(path, "overload"), checkWord("overload strategy", p.Overload,
			OverloadPark, OverloadReject, OverloadDrop, OverloadDegrade))
	}
	at := join(path, "max_defer")
	switch d := p.MaxDefer; {
	case d < 0 || f.zeros[at]:
		f.add(at, "the max_defer must be longer than zero; to defer nothing, remove it and write overload: reject")
	case d > MaxMaxDefer:
		f.add(at, "the max_defer must be at most 366d; leave it out for no bound")
	case d%time.Microsecond != 0:
		f.add(at, "the max_defer must be whole microseconds")
	}
}

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
