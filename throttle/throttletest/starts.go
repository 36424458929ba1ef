package throttletest

import (
	"fmt"
	"math/big"
	"slices"
	"time"
)

// MaxInAnyInterval returns the most starts within any half-open interval of that
// length, [t, t+window): two starts exactly one window apart do not share one.
// A sliding log of n per window has kept its promise if the result is at most n.
//
// It panics if window is not above zero.
func MaxInAnyInterval(times []time.Time, window time.Duration) int {
	mustBePositive("window", int64(window))
	most, first := 0, 0
	at := offsets(times)
	for last := range at {
		for at[last]-at[first] >= int64(window) {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

// MaxPerWindow returns the most starts within any one of the half-open windows
// [start + k x window, start + (k+1) x window), for every whole k, negative ones
// too. Windows that are aligned to the clock have start time.Unix(0, 0).
//
// It panics if window is not above zero.
func MaxPerWindow(times []time.Time, window time.Duration, start time.Time) int {
	mustBePositive("window", int64(window))
	most := 0
	starts := map[int64]int{}
	for _, t := range times {
		n := windowOf(t, start, window)
		starts[n]++
		most = max(most, starts[n])
	}
	return most
}

// MaxPerOpenedWindow returns the most starts within any one window, where a start
// opens a window of that length, [start, start+window), if none is open.
//
// It panics if window is not above zero.
func MaxPerOpenedWindow(times []time.Time, window time.Duration) int {
	mustBePositive("window", int64(window))
	most, opened := 0, 0
	at := offsets(times)
	for i := range at {
		if at[i]-at[opened] >= int64(window) {
			opened = i
		}
		most = max(most, i-opened+1)
	}
	return most
}

// MaxBurst returns the smallest whole burst b for which every interval, of any
// length t, has at most b + count x t/period starts: the smallest token bucket of
// that rate that would have let all of them pass. Of no starts it is 0.
//
// It panics if count or period is not above zero.
func MaxBurst(times []time.Time, count int64, period time.Duration) int {
	mustBePositive("count", count)
	mustBePositive("period", int64(period))
	// Starts pour into a vessel that leaks at the rate and never holds less than
	// nothing. How high it stands after a start is the greatest excess of starts
	// over rate x t of all the intervals that end there. A token is period parts.
	var level, highest, leaked big.Int
	token := big.NewInt(int64(period))
	at := offsets(times)
	for i := range at {
		if i > 0 {
			level.Sub(&level, leaked.Mul(big.NewInt(at[i]-at[i-1]), big.NewInt(count)))
		}
		if level.Sign() < 0 {
			level.SetInt64(0)
		}
		if level.Add(&level, token); level.Cmp(&highest) > 0 {
			highest.Set(&level)
		}
	}
	whole, parts := highest.QuoRem(&highest, token, &leaked)
	return int(whole.Int64()) + parts.Sign()
}

// BurstSince returns the smallest whole burst b for which, at every time t, no more
// than b + count x (t - from)/period starts have been made since from: the smallest
// token bucket of that rate, full at from, that would have let them pass, if each was
// noted late. It judges on any machine: to note a start late never makes it larger.
// It is 0 if the starts never were ahead of the rate. No start may be before from.
//
// It panics if count or period is not above zero.
func BurstSince(from time.Time, times []time.Time, count int64, period time.Duration) int {
	mustBePositive("count", count)
	mustBePositive("period", int64(period))
	burst := 0
	var came big.Int // whole tokens since from
	for i, t := range slices.SortedFunc(slices.Values(times), time.Time.Compare) {
		came.Mul(big.NewInt(int64(max(0, t.Sub(from)))), big.NewInt(count))
		if came.Quo(&came, big.NewInt(int64(period))); came.IsInt64() {
			burst = max(burst, i+1-int(min(came.Int64(), int64(i+1))))
		}
	}
	return burst
}

// Used returns which share of what a token bucket allows between the first start
// and the last, burst + count x t/period, the starts have used. It is above 1 only
// if the bucket's promise was broken, near 1 if no quota went to waste, and 0 for
// no starts. Perfectly even starts at the rate use all of a burst of 1.
//
// It panics if burst, count or period is not above zero.
func Used(times []time.Time, burst, count int64, period time.Duration) float64 {
	mustBePositive("burst", burst)
	mustBePositive("count", count)
	mustBePositive("period", int64(period))
	if len(times) == 0 {
		return 0
	}
	at := offsets(times)
	t := at[len(at)-1] - at[0]
	return float64(len(at)) / (float64(burst) + float64(count)*(float64(t)/float64(period)))
}

// offsets are the times in order, as nanoseconds from the first in the slice.
func offsets(times []time.Time) []int64 {
	at := make([]int64, len(times))
	for i, t := range times {
		at[i] = int64(t.Sub(times[0]))
	}
	slices.Sort(at)
	return at
}

func mustBePositive(what string, n int64) {
	if n <= 0 {
		panic(fmt.Sprintf("throttletest: %s is %d; it must be above zero", what, n))
	}
}
