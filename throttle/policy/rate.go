package policy

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
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

// valid reports whether there is nothing wrong with the rate's numbers.
func (r Rate) valid() bool { return r.check() == nil }

// parseWhole reads a whole number written in digits. One too large for an int64
// comes back as the nearest int64, which is beyond every bound as well.
func parseWhole(s string) (int64, error) {
	number, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrSyntax) || s[0] == '+' {
		return 0, fmt.Errorf("%s is not a whole number in plain digits", quote(s))
	}
	return number, nil
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

// durationPart is a number and its unit, at the beginning of a text.
var durationPart = regexp.MustCompile(`^([0-9.]*)([^0-9.+-]*)`)

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
		part := durationPart.FindStringSubmatch(rest)
		amount, ok := new(big.Rat).SetString(part[1])
		if !ok {
			return 0, errNoDuration
		}
		size, ok := units[part[2]]
		if !ok {
			return 0, unitError(part[2])
		}
		sum.Add(sum, amount.Mul(amount, big.NewRat(int64(size), 1)))
		rest = rest[len(part[0]):]
	}
	if negative {
		sum.Neg(sum)
	}
	switch {
	case !sum.IsInt():
		return 0, errors.New("there is less than a microsecond; write whole ones, as in 15us")
	case sum.Num().IsInt64():
		return time.Duration(sum.Num().Int64()), nil
	case negative:
		return math.MinInt64, nil
	}
	return math.MaxInt64, nil
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
