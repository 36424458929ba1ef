package policy

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// The bounds of a policy and of a limit's numbers. The scripts reckon in whole
// microseconds with Lua's numbers, which are exact up to 2^53, about 9.0e15. They
// take cost x period / count by quotient and remainder of period by count, so
// with these bounds nothing they compute leaves that range: a remainder's product
// stays under MaxBurst x MaxCount, 1e15, a refill time under MaxRefill, 9.5e14,
// and today's Redis time, 1.8e15, plus a refill well below the limit, too. The
// others keep small what one call reads and writes.
const (
	// MaxLimits is the most limits a policy may have: each is decided in every
	// call.
	MaxLimits = 32
	// MaxCount is the most tokens a rate may have per period; the least is 1.
	MaxCount = 10_000_000
	// MaxLogCount is the most tokens a SlidingLog may have per period, because it
	// remembers each start.
	MaxLogCount = 10_000
	// MaxBurst is the most tokens a bucket may hold; the least is 1.
	MaxBurst = 100_000_000
	// MinPeriod is the shortest period, and what every period is a multiple of:
	// Redis's clock has no finer step.
	MinPeriod = time.Microsecond
	// MaxPeriod is the longest period, a leap year: quotas per year fit, and a
	// mistyped unit is noticed.
	MaxPeriod = 366 * 24 * time.Hour
	// MaxRefill is the longest an empty bucket may take to become full, 30 years.
	MaxRefill = 30 * 365 * 24 * time.Hour
	// MaxBuckets is the most buckets Precision may cut a SlidingWindow's period
	// into, because a decision may read them all.
	MaxBuckets = 1000
	// MaxSlots is the most slots of a Concurrency limit, because each taken one is
	// kept by itself; the least is 1.
	MaxSlots = 100_000
	// MinLease is the shortest lease: a shorter one would end while a running task's
	// renewal is on its way.
	MinLease = time.Second
	// MaxLease is the longest lease: a slot whose process died is lost that long.
	MaxLease = 24 * time.Hour
	// MaxMaxWait is the longest a policy may let a worker hold a task. A task that
	// is further from its slot than this belongs in the waiting line: held, it
	// would take up a worker and run into asynq's own timeout.
	MaxMaxWait = time.Hour
	// MaxMaxFreeze is the longest that a policy may let one response close it: a
	// quota of a month.
	MaxMaxFreeze = 31 * 24 * time.Hour
)

// The checks of single keys tell what is wrong with a limit's value, or, where it is left
// out, with that; else they return nil.

func (l *Limit) checkRate(given bool) error {
	if !given {
		return errors.New("the rate is missing; write tokens per period, as in 5000/1h")
	}
	if err := l.Rate.check(); err != nil {
		return fmt.Errorf("%s: %w", l.Rate, err)
	}
	if l.Algorithm == SlidingLog && l.Rate.Count > MaxLogCount {
		return fmt.Errorf("%s: the count of a sliding_log must be at most %d, because it remembers each start; "+
			"use a sliding_window for more", l.Rate, MaxLogCount)
	}
	if spacing := l.Rate.Period / time.Duration(l.Rate.Count); l.Algorithm == Spacing && spacing < MinPeriod {
		return fmt.Errorf("%s: the starts of a spacing must be at least 1us apart; write a slower rate, or use a token_bucket", l.Rate)
	}
	return nil
}

func (l *Limit) checkBurst(given bool) error {
	switch {
	case !given:
		return nil
	case l.Burst < 1:
		return fmt.Errorf("the burst is %d, but must be at least 1; leave it out for the rate's count", l.Burst)
	case l.Burst > MaxBurst:
		return fmt.Errorf("the burst is %d, but must be at most %d", l.Burst, MaxBurst)
	case l.Rate.valid() && l.Burst > l.Rate.mostRefilled():
		return fmt.Errorf("a bucket of %d needs more than 30 years to fill up at %s; write at most %d, or a faster rate",
			l.Burst, l.Rate, l.Rate.mostRefilled())
	}
	return nil
}

// mostRefilled is the largest burst that refills within MaxRefill at this rate,
// which must be a valid one.
func (r Rate) mostRefilled() int64 {
	period := uint64(r.Period / time.Microsecond)
	// 30 years in microseconds times a count may not fit 64 bits.
	hi, lo := bits.Mul64(uint64(MaxRefill/time.Microsecond), uint64(r.Count))
	if hi >= period {
		return math.MaxInt64
	}
	most, _ := bits.Div64(hi, lo, period)
	return int64(min(most, math.MaxInt64))
}

func (l *Limit) checkPrecision(given bool) error {
	period, precision := l.Rate.Period, l.BucketLength()
	switch {
	case given && l.Precision <= 0:
		return fmt.Errorf("the precision is %s, but must be longer than zero; leave it out for a twentieth of the period", l.Precision)
	case given && l.Precision%time.Microsecond != 0:
		return fmt.Errorf("the precision is %s, but must be whole microseconds, at least 1us", l.Precision)
	case !l.Rate.valid():
		return nil // which is told of the rate
	case period%precision == 0 && period/precision <= MaxBuckets:
		return nil
	case period%precision == 0:
		return fmt.Errorf("a precision of %s cuts the period of %s into %d buckets, but a decision may read at most %d; write a longer one, as in %s",
			precision, period, period/precision, MaxBuckets, l.Rate.nearestPrecision(precision))
	case !given:
		return fmt.Errorf("the period of %s can not be cut into %d equal buckets of whole microseconds; add a precision that divides it, as in %s",
			period, defaultBuckets, l.Rate.nearestPrecision(precision))
	}
	return fmt.Errorf("a precision of %s does not divide the period of %s; write one that does, as in %s",
		precision, period, l.Rate.nearestPrecision(precision))
}

// nearestPrecision returns, of the precisions that a valid rate's period can have,
// the one nearest to what was wanted.
func (r Rate) nearestPrecision(wanted time.Duration) time.Duration {
	factor := func(a, b time.Duration) float64 { return float64(max(a, b)) / float64(min(a, b)) }
	best, period := r.Period, r.Period.Microseconds()
	for buckets := int64(2); buckets <= MaxBuckets; buckets++ {
		precision := time.Duration(period/buckets) * time.Microsecond
		if period%buckets == 0 && factor(precision, wanted) < factor(best, wanted) {
			best = precision
		}
	}
	return best
}

func (l *Limit) checkSlots(given bool) error {
	switch {
	case !given:
		return errors.New("the slots are missing; write how many tasks may run at once, as in slots: 100")
	case l.Slots < 1:
		return fmt.Errorf("the slots are %d, but must be at least 1", l.Slots)
	case l.Slots > MaxSlots:
		return fmt.Errorf("the slots are %d, but must be at most %d, because each taken one is kept by itself", l.Slots, MaxSlots)
	}
	return nil
}

func (l *Limit) checkLease(given bool) error {
	switch lease := l.Lease; {
	case !given:
		return nil
	case lease < MinLease:
		return fmt.Errorf("the lease is %s, but must be at least 1s, for its renewals to arrive in time; leave it out for %s", lease, DefaultLease)
	case lease > MaxLease:
		return fmt.Errorf("the lease is %s, but must be at most 24h: for that long a dead worker's slot is lost; "+
			"a running task's lease is renewed however long it takes", lease)
	case lease%time.Microsecond != 0:
		return fmt.Errorf("the lease is %s, but must be whole microseconds", lease)
	}
	return nil
}
