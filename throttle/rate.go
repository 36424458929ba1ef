package throttle

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strings"
	"time"
)

// The bounds of a limit's numbers. The scripts reckon in whole microseconds with
// Lua's numbers, which are exact up to 2^53, about 9.0e15. They take
// cost x period / count by quotient and remainder of period by count, so with
// these bounds nothing they compute leaves that range: a remainder's product
// stays under MaxBurst x MaxCount, 1e15, a refill time under MaxRefill, 9.5e14,
// and today's Redis time, 1.8e15, plus a refill well below the limit, too.
const (
	// MaxCount is the most tokens a rate may have per period; the least is 1.
	MaxCount = 10_000_000
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
)

// ParseRate reads a rate as a policies file has it: tokens per period, where the
// period is a unit or a duration. The units are us (or µs), ms, s, m, h and d;
// durations may be joined, so 10/s, 100/15m, 5000/1h, 1/1d and 20/1h30m are
// rates. The error tells what is wrong with s and what would be right; a rate
// that comes without an error is within MaxCount, MinPeriod and MaxPeriod.
func ParseRate(s string) (Rate, error) {
	rate, err := parseRate(s)
	if err != nil {
		return Rate{}, fmt.Errorf("rate %s: %w", quote(s), err)
	}
	return rate, nil
}

// parseRate is ParseRate for callers that say themselves what rate they read.
func parseRate(s string) (Rate, error) {
	if strings.ContainsAny(s, " \t\r\n") {
		return Rate{}, errors.New("remove the spaces; write tokens per period, as in 5000/1h")
	}
	tokens, period, found := strings.Cut(s, "/")
	if !found || period == "" {
		return Rate{}, errors.New("the period is missing; write tokens per period, as in 10/s or 5000/1h")
	}
	count, err := parseWhole(tokens)
	if err != nil {
		if strings.Contains(tokens, ".") {
			err = fmt.Errorf("%w; lengthen the period instead: 3/2s is one and a half per second", err)
		}
		return Rate{}, err
	}
	if strings.IndexAny(period, "0123456789.+-") != 0 {
		period = "1" + period
	}
	length, err := parseDuration(period)
	if err != nil {
		return Rate{}, err
	}
	rate := Rate{Count: count, Period: length}
	return rate, rate.check()
}

// check tells what is wrong with the rate's numbers, or returns nil.
func (r Rate) check() error {
	switch {
	case r.Count < 1:
		return errors.New("the count must be at least 1 token per period")
	case r.Count > MaxCount:
		return fmt.Errorf("the count must be at most %d; take a shorter period for a faster rate", MaxCount)
	case r.Period <= 0:
		return errors.New("the period must be longer than zero")
	case r.Period > MaxPeriod:
		return errors.New("the period must be at most 366d")
	case r.Period%MinPeriod != 0:
		return errors.New("the period must be whole microseconds, at least 1us")
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

// parseWhole reads a whole number written in digits. One too large for an int64
// comes back as the nearest int64, which is beyond every bound as well.
func parseWhole(s string) (int64, error) {
	number, ok := new(big.Int).SetString(s, 10)
	if !ok || s[0] == '+' {
		return 0, fmt.Errorf("%s is not a whole number in plain digits", quote(s))
	}
	return clamp(number), nil
}

// units are the words for a duration's units.
var units = map[string]time.Duration{
	"ns": time.Nanosecond,
	"us": time.Microsecond,
	"µs": time.Microsecond, // the micro sign
	"μs": time.Microsecond, // the Greek letter
	"ms": time.Millisecond,
	"s":  time.Second,
	"m":  time.Minute,
	"h":  time.Hour,
	"d":  24 * time.Hour,
}

// spelledOut are units as people also write them, and the word to use instead.
var spelledOut = map[string]string{
	"usec": "us", "microsecond": "us", "msec": "ms", "millisecond": "ms",
	"sec": "s", "second": "s", "min": "m", "minute": "m",
	"hr": "h", "hour": "h", "day": "d", "w": "7d", "week": "7d",
}

// parseDuration reads a Go duration that may also count days. One too long for a
// time.Duration comes back as the longest there is, beyond every bound as well.
func parseDuration(s string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(s, "-")
	if rest == "0" {
		return 0, nil
	}
	if rest == "" {
		return 0, errNoDuration
	}
	sum := new(big.Rat) // exact: a fraction must not be rounded away
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		number := rest[:digits]
		unit := rest[digits:]
		if end := strings.IndexAny(unit, "0123456789.+-"); end >= 0 {
			unit = unit[:end]
		}
		rest = rest[digits+len(unit):]

		amount, ok := new(big.Rat).SetString(number)
		if !ok {
			return 0, errNoDuration
		}
		size, ok := units[unit]
		if !ok {
			return 0, unitError(unit)
		}
		sum.Add(sum, amount.Mul(amount, big.NewRat(int64(size), 1)))
	}
	if negative {
		sum.Neg(sum)
	}
	if !sum.IsInt() {
		return 0, errors.New("there is less than a microsecond; write whole ones, as in 15us")
	}
	return time.Duration(clamp(sum.Num())), nil
}

var errNoDuration = errors.New("there is no duration; write one such as 500ms, 15m or 1h30m")

// unitError says what is wrong with a unit that is not one of units.
func unitError(unit string) error {
	if unit == "" {
		return errors.New("the duration has no unit; add one of us, ms, s, m, h, d")
	}
	word := strings.TrimSuffix(strings.ToLower(unit), "s")
	if right, ok := spelledOut[word]; ok {
		return fmt.Errorf("the unit %s is unknown; write %s", quote(unit), right)
	}
	return fmt.Errorf("the unit %s is unknown; use one of us, ms, s, m, h, d", quote(unit))
}

// clamp returns the int64 nearest to n.
func clamp(n *big.Int) int64 {
	switch {
	case n.IsInt64():
		return n.Int64()
	case n.Sign() < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}

// quote shows what somebody wrote, on one line and not too much of it.
func quote(s string) string {
	const enough = 60
	if runes := []rune(s); len(runes) > enough {
		s = string(runes[:enough]) + "..."
	}
	return fmt.Sprintf("%q", s)
}
