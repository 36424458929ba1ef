package policy

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// DefaultMaxWait is how long a worker may hold a task until its slot when a
// policy does not say.
const DefaultMaxWait = time.Second

// Config is everything a policies file says: the policies, and which task types
// each of them governs. The zero value has no policy and routes nothing.
//
// The tags of its structs' fields, and of those below, are the keys of a policies file, in
// the order in which messages name them.
type Config struct {
	Policies []Policy `key:"policies"`
	// Routes are tried in order; the first that matches a task's type names its
	// policy. A task that no route matches is not throttled.
	Routes []Route `key:"routes"`
}

// Policy is the named set of limits of one upstream. A request passes when all
// limits pass, and then takes from all of them at once.
type Policy struct {
	// Name is unique in a Config. It becomes part of the Redis keys, so renaming
	// a policy starts its counts anew.
	Name   string
	Limits []Limit `key:"limits"`
	// Lane is the task attribute whose values share the policy fairly. Empty
	// means one lane for all.
	Lane string `key:"lane"`
	// Weights are the weights of lanes that have another than 1: a lane of weight 2
	// gets twice the share of one of weight 1 while both have tasks in line.
	Weights map[string]int64 `key:"weights"`
	// Weight names the task attribute that holds the weight of its lane, which goes
	// before Weights. Of a lane's tasks the one that was parked last has its way, but
	// for a weight of 1, which waits until the lane was empty. Empty, or a task
	// without that attribute, means Weights.
	Weight string `key:"weight"`
	// MaxWait is how long a worker may hold a task until its slot. Zero means
	// DefaultMaxWait; negative means a worker never holds a task.
	MaxWait time.Duration `key:"max_wait"`
	// MaxDefer is how far ahead the start of a task may be expected for the task to be
	// parked; it bounds MaxWait, too. Zero means no bound.
	MaxDefer time.Duration `key:"max_defer"`
	// Overload is what becomes of tasks that are not parked. Empty means OverloadPark.
	Overload Overload `key:"overload"`
	// Upstream says how to heed what the upstream tells of its quota. Nil means not
	// at all, besides freezing the policy for a throttle.RateLimitedError.
	Upstream *Upstream `key:"upstream"`
}

// Wait returns the time a worker may hold a task of this policy: MaxWait with
// its default applied and never negative.
func (p *Policy) Wait() time.Duration { return max(0, cmp.Or(p.MaxWait, DefaultMaxWait)) }

// Algorithm names how a limit counts.
type Algorithm string

// The algorithms this version knows.
const (
	// TokenBucket refills Rate.Count tokens evenly over Rate.Period into a
	// bucket that holds Burst; a request takes its cost. It allows
	// Burst + rate x t over every interval t.
	TokenBucket Algorithm = "token_bucket"
	// FixedWindow allows Rate.Count in each window of Rate.Period.
	FixedWindow Algorithm = "fixed_window"
	// SlidingLog allows Rate.Count in every interval of Rate.Period, exactly, and
	// remembers each start: memory grows with the count. Under other numbers the
	// recorded starts count as they are. Starts may be a little late, and be that much
	// closer together; so those that may wait are one percent of the period,
	// throttle.Lateness at most, further apart than need be, and no later than half of
	// that, or than a quarter of throttle.Lateness where it is longer.
	SlidingLog Algorithm = "sliding_log"
	// SlidingWindow allows Rate.Count in every interval of Rate.Period, counted in
	// buckets of Precision: memory is bounded by their number, and up to one bucket
	// more of the past counts than has to.
	SlidingWindow Algorithm = "sliding_window"
	// Concurrency allows Slots tasks at once. A slot is a lease: renewed while the
	// task runs, ended with it, and reclaimed a Lease after its process died.
	Concurrency Algorithm = "concurrency"
	// Spacing keeps starts a constant Rate.Period/Rate.Count apart, as a leaky bucket
	// that is a queue does: it saves up nothing, so there is no burst. A start of cost c
	// keeps the next one c times as far away. Within every interval t it allows one start
	// more than whole spacings fit into t, to the microsecond of Redis's clock. Slots ahead
	// stay where they are under other numbers, and new ones come after them.
	Spacing Algorithm = "spacing"
)

// Anchor says where the windows of a FixedWindow limit begin.
type Anchor string

// The anchors of a fixed window.
const (
	// AnchorClock aligns windows to multiples of the period since the Unix
	// epoch, so that all keys turn over at the same instant. The default.
	AnchorClock Anchor = "clock"
	// AnchorFirst begins a window with the first request after the last one ended.
	AnchorFirst Anchor = "first"
)

// Refill says how a TokenBucket gets its tokens.
type Refill string

// The ways to refill a token bucket.
const (
	// RefillSmooth gives one token every Rate.Period/Rate.Count. The default.
	RefillSmooth Refill = "smooth"
	// RefillInterval gives Rate.Count tokens at once, every Rate.Period since the
	// bucket was last full.
	RefillInterval Refill = "interval"
)

// Defaults of the algorithms that have one.
const (
	// DefaultLease is how long a slot outlives the last sign of life of its task.
	DefaultLease = 30 * time.Second
	// defaultBuckets is how many buckets a sliding window has when Precision does
	// not say.
	defaultBuckets = 20
)

// Limit is one algorithm with its numbers.
type Limit struct {
	// Name is unique in its policy and appears in decisions, messages and metrics.
	Name      string    `key:"name"`
	Algorithm Algorithm `key:"algorithm"`
	// Rate is how many tokens per period.
	Rate Rate `key:"rate"`
	// Anchor is for FixedWindow. Empty means AnchorClock.
	Anchor Anchor `key:"anchor"`
	// Precision is the length of a SlidingWindow's buckets; it divides Rate.Period.
	// Zero means a twentieth of the period.
	Precision time.Duration `key:"precision"`
	// Burst is how many tokens a TokenBucket holds at most. Zero means Rate.Count.
	Burst int64 `key:"burst"`
	// Refill is for TokenBucket. Empty means RefillSmooth.
	Refill Refill `key:"refill"`
	// Slots is how many tasks a Concurrency limit allows at once.
	Slots int64 `key:"slots"`
	// Lease is for Concurrency. Zero means DefaultLease.
	Lease time.Duration `key:"lease"`
	// Per names the task attribute each of whose values has a count of its own.
	// Empty means one count for all.
	Per string `key:"per"`
	// Cost names the task attribute that holds how many tokens a task takes.
	// Empty, or a task without that attribute, means 1.
	Cost string `key:"cost"`
	// Headroom is kept for urgent tasks.
	Headroom Headroom `key:"headroom"`
}

// Capacity is the most the limit holds at once: the burst of a token bucket, the count of
// a window, the slots of a concurrency limit; and one start of a spacing.
func (l *Limit) Capacity() int64 {
	switch l.Algorithm {
	case Spacing:
		return 1
	case Concurrency:
		return l.Slots
	case FixedWindow, SlidingLog, SlidingWindow:
		return l.Rate.Count
	case TokenBucket:
	}
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Rate.Count
}

// MostCost is the most a single request may cost: Capacity, but for a Spacing, which only
// keeps the next start away for longer, up to MaxRefill.
func (l *Limit) MostCost() int64 {
	if l.Algorithm == Spacing && l.Rate.valid() {
		return min(MaxBurst, l.Rate.mostRefilled())
	}
	return l.Capacity()
}

// Kind names how the limit counts: by its algorithm, or as an interval_bucket where a
// TokenBucket has RefillInterval. What one kind has counted no other can read.
func (l *Limit) Kind() string {
	if l.Algorithm == TokenBucket && l.Refill == RefillInterval {
		return "interval_bucket"
	}
	return string(l.Algorithm)
}

// BucketLength returns Precision with its default applied.
func (l *Limit) BucketLength() time.Duration {
	if l.Precision > 0 {
		return l.Precision
	}
	return max(time.Microsecond, (l.Rate.Period / defaultBuckets).Truncate(time.Microsecond))
}

// LeaseLength returns Lease with its default applied.
func (l *Limit) LeaseLength() time.Duration { return cmp.Or(l.Lease, DefaultLease) }

// String says the limit in a line, as in `hourly: 5000/1h0m0s per installation`.
func (l *Limit) String() string {
	text := l.Name + ": " + l.Rate.String()
	if l.Algorithm == Concurrency {
		text = fmt.Sprintf("%s: %d at once", l.Name, l.Slots)
	}
	if l.Algorithm == TokenBucket && l.Burst > 0 && l.Burst != l.Rate.Count {
		text += fmt.Sprintf(" burst %d", l.Burst)
	}
	if l.Per != "" {
		text += " per " + l.Per
	}
	return text
}

// Rate is a number of tokens per period.
type Rate struct {
	Count  int64
	Period time.Duration
}

// String writes the rate as a policies file has it: 10/1s, 5000/1h0m0s.
func (r Rate) String() string { return fmt.Sprintf("%d/%s", r.Count, r.Period) }

// PerSecond returns how many tokens there are per second.
func (r Rate) PerSecond() float64 { return float64(r.Count) / r.Period.Seconds() }

// Route sends the tasks of one type to a policy.
type Route struct {
	// Task is a task type, or a prefix of one followed by *.
	Task string `key:"task"`
	// Policy is the name of a policy of the same Config.
	Policy string `key:"policy"`
}

// Matches reports whether the route is for tasks of that type.
func (r Route) Matches(taskType string) bool {
	if prefix, ok := strings.CutSuffix(r.Task, "*"); ok {
		return strings.HasPrefix(taskType, prefix)
	}
	return r.Task == taskType
}

// PolicyFor returns the policy that governs tasks of that type, or nil when no
// route matches.
func (c *Config) PolicyFor(taskType string) *Policy {
	for _, r := range c.Routes {
		if r.Matches(taskType) {
			return c.Policy(r.Policy)
		}
	}
	return nil
}

// Policy returns the policy of that name, or nil.
func (c *Config) Policy(name string) *Policy {
	for i := range c.Policies {
		if c.Policies[i].Name == name {
			return &c.Policies[i]
		}
	}
	return nil
}

// Limit returns the policy's limit of that name, or nil.
func (p *Policy) Limit(name string) *Limit {
	for i := range p.Limits {
		if p.Limits[i].Name == name {
			return &p.Limits[i]
		}
	}
	return nil
}
