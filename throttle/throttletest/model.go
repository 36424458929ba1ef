package throttletest

import "time"

// Start is one start that a limiter let happen.
type Start struct {
	At time.Time
	// Cost is how many tokens it took, or how many slots.
	Cost int64
	// Ends is when a start of a concurrency limit gives its slots back: at its release,
	// or when its lease runs out. Zero for limits without leases.
	Ends time.Time
}

// Model is the definition of a limit, as a question about recorded starts of one key.
// It keeps no count: whoever has recorded the starts can judge them, whatever the
// limiter that let them happen believes.
type Model struct {
	// Capacity is the most that a request can cost. A limit of which nothing was taken
	// lets that much start at once.
	Capacity int64
	// Memory is how long a start matters, at most, to one that comes later; also where
	// as much as can be was started at once.
	Memory time.Duration
	// Holds reports whether starts, in any order, keep to the definition.
	Holds func(starts []Start) bool
	// Owes reports whether the limit has to let the last of starts happen, after the
	// others; it may deny what Holds allows beyond that. Once a start is owed it stays
	// owed, if no other comes. Nil means Holds: the limit is exact.
	Owes func(starts []Start) bool
	// Lease is how long a start that is not released holds its slots. Zero is for
	// limits whose starts hold nothing.
	Lease time.Duration
}

// TokenBucketModel is a bucket of burst tokens that gets count of them evenly over each
// period: over every time t, no more than burst + count x t/period start.
func TokenBucketModel(count int64, period time.Duration, burst int64) Model {
	mustBePositive("count", count)
	refill := time.Duration((burst*int64(period) + count - 1) / count)
	return Model{Capacity: burst, Memory: refill, Holds: func(starts []Start) bool {
		return int64(MaxBurst(tokenTimes(starts), count, period)) <= burst
	}}
}

// IntervalBucketModel is a bucket of burst tokens that gets count of them at once, at
// the end of each period since it was last full.
func IntervalBucketModel(count int64, period time.Duration, burst int64) Model {
	mustBePositive("count", count)
	refills := (burst + count - 1) / count
	return Model{Capacity: burst, Memory: time.Duration(refills) * period, Holds: func(starts []Start) bool {
		taken, refilled := int64(0), int64(0)
		for _, at := range offsets(tokenTimes(starts)) {
			if n := min((at-refilled)/int64(period), taken); taken > 0 {
				taken, refilled = max(0, taken-n*count), refilled+n*int64(period)
			}
			if taken == 0 {
				refilled = at
			}
			if taken++; taken > burst {
				return false
			}
		}
		return true
	}}
}

// FixedWindowModel allows count in each window of that period, where windows are aligned
// to the clock: see [MaxPerWindow].
func FixedWindowModel(count int64, period time.Duration) Model {
	return Model{Capacity: count, Memory: period, Holds: func(starts []Start) bool {
		return int64(MaxPerWindow(tokenTimes(starts), period, time.Unix(0, 0))) <= count
	}}
}

// OpenedWindowModel allows count in each window of that period, where a start opens a
// window if none is open: see [MaxPerOpenedWindow].
func OpenedWindowModel(count int64, period time.Duration) Model {
	return Model{Capacity: count, Memory: period, Holds: func(starts []Start) bool {
		return int64(MaxPerOpenedWindow(tokenTimes(starts), period)) <= count
	}}
}

// SlidingLogModel allows count in every half-open interval of one period: see
// [MaxInAnyInterval].
func SlidingLogModel(count int64, period time.Duration) Model {
	return Model{Capacity: count, Memory: period, Holds: func(starts []Start) bool {
		return int64(MaxInAnyInterval(tokenTimes(starts), period)) <= count
	}}
}

// SlidingWindowModel allows count in every half-open interval of one period, and counts
// in buckets of precision, which are aligned to the clock: it may deny what would make
// more than count in period/precision + 1 buckets in a row. The precision divides the
// period.
func SlidingWindowModel(count int64, period, precision time.Duration) Model {
	exact := SlidingLogModel(count, period)
	return Model{
		Capacity: count, Memory: period + precision, Holds: exact.Holds,
		Owes: func(starts []Start) bool {
			bucket := func(s Start) int64 { return windowOf(s.At, time.Unix(0, 0), precision) }
			last, counted := bucket(starts[len(starts)-1]), int64(0)
			for _, s := range starts {
				if bucket(s) >= last-int64(period/precision) {
					counted += s.Cost
				}
			}
			return counted <= count
		},
	}
}

// ConcurrencyModel allows starts of so many slots at once. A start holds its slots until
// it is released, and no longer than for the lease.
func ConcurrencyModel(slots int64, lease time.Duration) Model {
	return Model{Capacity: slots, Memory: lease, Lease: lease, Holds: func(starts []Start) bool {
		for _, at := range starts { // as many as ever are held, are held when one starts
			held := int64(0)
			for _, s := range starts {
				if !s.At.After(at.At) && s.Ends.After(at.At) {
					held += s.Cost
				}
			}
			if held > slots {
				return false
			}
		}
		return true
	}}
}

// tokenTimes has the time of each start once for each token, as the judging functions
// take them.
func tokenTimes(starts []Start) []time.Time {
	var times []time.Time
	for _, s := range starts {
		for range s.Cost {
			times = append(times, s.At)
		}
	}
	return times
}
