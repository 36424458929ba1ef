package policy

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"
)

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
