package throttletest

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// at makes times of offsets from noon.
func at(offsets ...time.Duration) []time.Time {
	times := make([]time.Time, len(offsets))
	for i, o := range offsets {
		times[i] = noon.Add(o)
	}
	return times
}

func TestMaxInAnyInterval(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times  []time.Time
		window time.Duration
		want   int
	}{
		"none":                     {nil, time.Second, 0},
		"one":                      {at(5), time.Second, 1},
		"the same instant":         {at(5, 5, 5), 1, 3},
		"exactly a window apart":   {at(0, time.Second), time.Second, 1},
		"a nanosecond less":        {at(0, time.Second-1), time.Second, 2},
		"across a window's edge":   {at(900*ms, 950*ms, 1000*ms, 1050*ms), time.Second, 4},
		"in any order":             {at(7*time.Second, 0, 7500*ms, time.Second), time.Second, 2},
		"before the first given":   {at(0, -10*ms, -20*ms), time.Second, 3},
		"the busiest in the midst": {at(0, 10, 11, 12, 30), 3, 3},
	} {
		assert.Equal(t, tt.want, MaxInAnyInterval(tt.times, tt.window), name)
	}
}

func TestMaxPerWindow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times []time.Time
		start time.Time
		want  int
	}{
		"none":                  {nil, noon, 0},
		"the end is not in it":  {at(0, time.Second), noon, 1},
		"the beginning is":      {at(0, time.Second-1), noon, 2},
		"split by an edge":      {at(900*ms, 950*ms, 1000*ms, 1050*ms), noon, 2},
		"another phase":         {at(900*ms, 950*ms, 1000*ms, 1050*ms), noon.Add(500 * ms), 4},
		"a start in the future": {at(900*ms, 950*ms, 1000*ms, 1050*ms), noon.Add(time.Hour), 2},
		"before the start":      {at(-1, -time.Second, -time.Second-1), noon, 2},
		"since 1970":            {at(0, 1, time.Second), time.Unix(0, 0), 2},
		"in any order":          {at(5*time.Second, 1, 5*time.Second+1, 0, 2), noon, 3},
	} {
		assert.Equal(t, tt.want, MaxPerWindow(tt.times, time.Second, tt.start), name)
	}
}

func TestMaxPerOpenedWindow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times []time.Time
		want  int
	}{
		"none":                   {nil, 0},
		"one":                    {at(3), 1},
		"the end opens the next": {at(0, 999*ms, time.Second, 1500*ms, 1999*ms), 3},
		"a pause opens nothing":  {at(0, 2500*ms, 3*time.Second, 3400*ms, 3600*ms), 3},
		"in any order":           {at(time.Second, 0, 1), 2},
	} {
		assert.Equal(t, tt.want, MaxPerOpenedWindow(tt.times, time.Second), name)
	}
}

func TestMaxBurst(t *testing.T) {
	t.Parallel()
	even := make([]time.Duration, 101)
	for i := range even {
		even[i] = time.Duration(i) * 100 * ms
	}
	crowd := make([]time.Duration, 1000)
	for name, tt := range map[string]struct {
		times  []time.Time
		count  int64
		period time.Duration
		want   int
	}{
		"none":                      {nil, 10, time.Second, 0},
		"one":                       {at(0), 10, time.Second, 1},
		"even":                      {at(even...), 10, time.Second, 1},
		"even at half the rate":     {at(even...), 5, time.Second, 51},
		"a nanosecond early":        {at(0, 100*ms-1), 10, time.Second, 2},
		"on time":                   {at(0, 100*ms), 10, time.Second, 1},
		"thirds of a second":        {at(0, 333_333_333), 3, time.Second, 2},
		"thirds, rounded up":        {at(0, 333_333_334, 666_666_668, 1_000_000_002), 3, time.Second, 1},
		"a burst, then the rate":    {at(0, 0, 0, 100*ms, 200*ms), 10, time.Second, 3},
		"a burst after a long rest": {at(0, time.Hour, time.Hour), 10, time.Second, 2},
		"in any order":              {at(200*ms, 0, 100*ms, 0), 10, time.Second, 2},
		"days and thousands":        {at(crowd...), 1, 240 * time.Hour, 1000},
		"no end of tokens":          {at(0, 0, 200*365*24*time.Hour), math.MaxInt64, 1, 2},
	} {
		assert.Equal(t, tt.want, MaxBurst(tt.times, tt.count, tt.period), name)
	}
}

func TestBurstSince(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times []time.Time
		want  int
	}{
		"none":                      {nil, 0},
		"at the rate":               {at(100*ms, 200*ms, 300*ms), 0},
		"one ahead of it":           {at(0, 100*ms, 200*ms), 1},
		"half a token ahead":        {at(100*ms, 150*ms), 1},
		"all late, and together":    {at(300*ms, 300*ms, 300*ms), 0},
		"a burst, then too many":    {at(200*ms, 200*ms, 210*ms, 220*ms, 230*ms), 3},
		"what is unused stays over": {at(1000*ms, 1000*ms, 1000*ms), 0},
		"in any order":              {at(200*ms, 0, 100*ms), 1},
	} {
		assert.Equal(t, tt.want, BurstSince(noon, tt.times, 10, time.Second), name)
	}
}

func TestUsed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		times []time.Time
		burst int64
		want  float64
	}{
		"none":            {nil, 1, 0},
		"one":             {at(0), 4, 0.25},
		"a whole burst":   {at(0, 0, 0, 0), 4, 1},
		"even":            {at(0, 100*ms, 200*ms), 1, 1},
		"every other":     {at(0, 200*ms, 400*ms), 1, 0.6},
		"burst and rate":  {at(0, 0, 0, 0, 100*ms), 4, 1},
		"more than there": {at(0, 0), 1, 2},
		"in any order":    {at(200*ms, 0, 100*ms), 1, 1},
	} {
		assert.InDelta(t, tt.want, Used(tt.times, tt.burst, 10, time.Second), 1e-9, name)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"MaxInAnyInterval":   func() { MaxInAnyInterval(nil, 0) },
		"MaxPerWindow":       func() { MaxPerWindow(nil, -1, noon) },
		"MaxPerOpenedWindow": func() { MaxPerOpenedWindow(nil, 0) },
		"MaxBurst, count":    func() { MaxBurst(nil, 0, 1) },
		"MaxBurst, period":   func() { MaxBurst(nil, 1, 0) },
		"BurstSince, count":  func() { BurstSince(noon, nil, 0, 1) },
		"BurstSince, period": func() { BurstSince(noon, nil, 1, 0) },
		"Used, burst":        func() { Used(nil, 0, 1, 1) },
		"Used, count":        func() { Used(nil, 1, 0, 1) },
		"Used, period":       func() { Used(nil, 1, 1, 0) },
		"a model's count":    func() { TokenBucketModel(0, 1, 1) },
		"a model's capacity": func() { Judge(t.Context(), nil, SlidingLogModel(0, 1), ConformOptions{}) },
		"a model's memory":   func() { Judge(t.Context(), nil, SlidingLogModel(1, 0), ConformOptions{}) },
		"a model without end": func() {
			model := SlidingLogModel(1, time.Second)
			model.Owes = func(starts []Start) bool { return len(starts) == 1 }
			Judge(t.Context(), newNaive(model).ask, model, ConformOptions{})
		},
	} {
		assert.Panics(t, f, name)
	}
}

// TestJudgesAgreeWithTheirDefinitions tries every interval of small worlds, whose
// time has 40 instants.
func TestJudgesAgreeWithTheirDefinitions(t *testing.T) {
	t.Parallel()
	const end = 40
	random := rand.New(rand.NewPCG(7, 11))
	for range 150 {
		times := make([]time.Time, random.IntN(14))
		for i := range times {
			times[i] = noon.Add(time.Duration(random.IntN(end)))
		}
		window := time.Duration(1 + random.IntN(15))
		phase := time.Duration(random.IntN(100) - 50)
		count, period := 1+random.Int64N(7), time.Duration(1+random.IntN(12))

		anyInterval, perWindow := 0, 0
		for from := -window; from < end; from++ {
			n := within(times, from, from+window-1)
			anyInterval = max(anyInterval, n)
			if (from-phase)%window == 0 {
				perWindow = max(perWindow, n)
			}
		}
		require.Equal(t, anyInterval, MaxInAnyInterval(times, window), "%v in %d", times, window)
		require.Equal(t, perWindow, MaxPerWindow(times, window, noon.Add(phase)), "%v in %d from %d", times, window, phase)

		opened := 0
		for from := time.Duration(0); from < end; from++ {
			if within(times, from, from) > 0 {
				opened = max(opened, within(times, from, from+window-1))
				from += window - 1
			}
		}
		require.Equal(t, opened, MaxPerOpenedWindow(times, window), "%v in %d", times, window)

		burst, since := new(big.Int), 0
		for from := time.Duration(0); from < end; from++ {
			for to := from; to < end; to++ {
				allowed := big.NewRat(count*int64(to-from), int64(period))
				excess := new(big.Rat).Sub(big.NewRat(int64(within(times, from, to)), 1), allowed)
				if up := ceil(excess); up.Cmp(burst) > 0 {
					burst = up
				}
				if from == 0 {
					since = max(since, within(times, from, to)-int(count*int64(to)/int64(period)))
				}
			}
		}
		require.Equal(t, since, BurstSince(noon, times, count, period), "%v at %d/%d", times, count, period)
		require.Equal(t, burst.Int64(), int64(MaxBurst(times, count, period)), "%v at %d/%d", times, count, period)
	}
}

// within counts the times of [from, to], both since noon.
func within(times []time.Time, from, to time.Duration) int {
	n := 0
	for _, t := range times {
		if o := t.Sub(noon); from <= o && o <= to {
			n++
		}
	}
	return n
}

func ceil(r *big.Rat) *big.Int {
	whole, rest := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole
}
