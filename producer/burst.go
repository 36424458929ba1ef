package producer

import (
	"sync"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// burst is what a batch has enqueued the plain way a moment ago: no worker may have
// taken it yet, so what it will take from the limits is there still, but spoken for.
type burst struct {
	mu sync.Mutex
	// Costs by whose count they go to, in the current span of time and in the one
	// before, which is when it began.
	latest, before map[count]int64
	since          time.Time
}

// burstSpan is for how long a task is taken to be on its way, up to twice that: an idle
// worker looks for tasks that often.
const burstSpan = 500 * time.Millisecond

// missing is how long the limits take to make up for what a task would not find any
// more, by a decision that does not know of the burst; zero if nothing is missing, and
// then the task is counted in. Of slots it says nothing: they may be free again soon.
// Nor does it where tasks may as well wait in asynq's queue, because no lane of others
// is behind them.
func (b *burst) missing(p *policy.Policy, d *throttle.Decision, now time.Time) (missing time.Duration) {
	if b == nil || p.Lane == "" {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.since) > burstSpan {
		b.before = b.latest
		if now.Sub(b.since) > 2*burstSpan {
			b.before = nil
		}
		b.latest, b.since = map[count]int64{}, now
	}
	for i := range min(len(p.Limits), len(d.Limits)) {
		limit, status := &p.Limits[i], d.Limits[i]
		if limit.Algorithm == policy.Concurrency {
			continue
		}
		c := count{p, limit, status.Key}
		short := b.latest[c] + b.before[c] + status.Cost - status.Remaining
		missing = max(missing, refill(short, limit.Rate))
	}
	if missing > 0 {
		return missing
	}
	for i := range min(len(p.Limits), len(d.Limits)) {
		b.latest[count{p, &p.Limits[i], d.Limits[i].Key}] += d.Limits[i].Cost
	}
	return 0
}
