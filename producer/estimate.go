package producer

import (
	"cmp"
	"math"
	"math/bits"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Load adds up what tasks will cost the limits of a Config, to tell how long
// the quota makes them take. It also finds tasks that no wait will ever help.
// A nil *Load accepts everything and knows of no quota. It is not safe for
// concurrent use.
type Load struct {
	config *policy.Config
	counts map[count]int64
}

// count is one limit's count for one key.
type count struct {
	policy *policy.Policy
	limit  *policy.Limit
	key    string
}

// Estimate is how long the quota alone makes a load take, and which count is the
// narrowest.
type Estimate struct {
	// Duration counts from full limits with nobody else drawing on them. Zero
	// when everything fits in what the limits hold.
	Duration time.Duration
	// Policy, Limit and Key name the count that takes longest; all empty when no
	// policy governs any of the tasks.
	Policy, Limit, Key string
	// Cost is what the tasks take from it altogether.
	Cost int64
}

// NewLoad returns an empty load for the limits of config; nil for a nil config.
func NewLoad(config *policy.Config) *Load {
	if config == nil {
		return nil
	}
	return &Load{config: config, counts: map[count]int64{}}
}

// Add counts a task in. A task that a worker could only archive is refused and
// not counted: the error is a [*policy.AttributeError] when it lacks what a
// limit needs, or a [*policy.NeverError] when it costs more than a limit ever
// holds.
func (l *Load) Add(taskType string, attributes map[string]string) error {
	if l == nil {
		return nil
	}
	policy := l.config.PolicyFor(taskType)
	if policy == nil {
		return nil
	}
	costs := make(map[count]int64, len(policy.Limits))
	for i := range policy.Limits {
		limit := &policy.Limits[i]
		key, cost, err := policy.Draw(limit, attributes)
		if err != nil {
			return err
		}
		costs[count{policy, limit, key}] = cost
	}
	for c, cost := range costs {
		l.counts[c] = add(l.counts[c], cost)
	}
	return nil
}

// Estimate returns how long the load takes: the longest over all counts of
// (cost - capacity) / rate. It is false when there is no Config to judge by.
func (l *Load) Estimate() (Estimate, bool) {
	if l == nil {
		return Estimate{}, false
	}
	var longest Estimate
	for c, cost := range l.counts {
		e := Estimate{
			Duration: refill(cost-c.limit.Capacity(), c.limit.Rate),
			Policy:   c.policy.Name, Limit: c.limit.Name, Key: c.key, Cost: cost,
		}
		if longest.Policy == "" || e.slowerThan(longest) {
			longest = e
		}
	}
	return longest, true
}

// slowerThan orders ties by cost and name, so that a map's order does not show.
func (e Estimate) slowerThan(other Estimate) bool {
	return cmp.Or(
		cmp.Compare(e.Duration, other.Duration), cmp.Compare(e.Cost, other.Cost), cmp.Compare(other.Policy, e.Policy),
		cmp.Compare(other.Limit, e.Limit), cmp.Compare(other.Key, e.Key),
	) > 0
}

// refill is how long a rate takes to make up for that many tokens, rounded up.
// What is too long for a Duration becomes the longest one.
func refill(tokens int64, rate policy.Rate) time.Duration {
	if tokens <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(tokens), uint64(rate.Period))
	if hi >= uint64(rate.Count) {
		return math.MaxInt64
	}
	quotient, rest := bits.Div64(hi, lo, uint64(rate.Count))
	if quotient >= math.MaxInt64 {
		return math.MaxInt64
	}
	if rest > 0 {
		quotient++
	}
	return time.Duration(quotient)
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
