package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// versions are two processes that have other numbers for one limit, as while the other
// half of a fleet is still to be deployed.
type versions struct {
	*testLimiter
	kind     string
	limits   [2]policy.Limit
	limiters [2]*throttle.Limiter
	slots    []*throttle.Reservation
}

func newVersions(b *testLimiter, kind string, limits [2]policy.Limit) *versions {
	v := &versions{testLimiter: b, kind: kind, limits: limits}
	for i := range limits {
		b.change(limits[i])
		v.limiters[i] = b.limiter
	}
	return v
}

// randomVersions are random numbers for a limit of a kind; half of them differ in one thing.
func randomVersions(random *rand.Rand, kind string) [2]policy.Limit {
	limits := [2]policy.Limit{numbersOf(random, kind), numbersOf(random, kind)}
	switch random.IntN(4) {
	case 0:
		limits[1].Rate.Period = limits[0].Rate.Period
	case 1:
		limits[1].Rate.Period, limits[1].Burst = limits[0].Rate.Period, limits[0].Burst
	}
	for i := range limits {
		if kind == "sliding_window" {
			limits[i].Precision = limits[i].Rate.Period / 10
		}
	}
	return limits
}

func numbersOf(random *rand.Rand, kind string) policy.Limit {
	periods := []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	limit := fivePerMinute()[kind]
	limit.Rate = policy.Rate{Count: 2 + random.Int64N(40), Period: periods[random.IntN(len(periods))]}
	if limit.Algorithm == policy.TokenBucket {
		limit.Burst = 1 + random.Int64N(30)
	}
	return limit
}

// ask has a process take all that it gets at a time.
func (v *versions) ask(process int, wait time.Duration) {
	v.t.Helper()
	for {
		r, err := v.limiters[process].Reserve(v.t.Context(), request(wait))
		require.NoError(v.t, err)
		if r.Outcome != throttle.Granted {
			return
		}
		v.slots = append(v.slots, r)
	}
}

// giveBack gives a slot back that lies ahead, if the one is such that chance names.
func (v *versions) giveBack(random *rand.Rand, now time.Duration) {
	v.t.Helper()
	if len(v.slots) == 0 {
		return
	}
	i := len(v.slots) - 1 - random.IntN(min(30, len(v.slots)))
	if v.slots[i].At.After(noon.Add(now)) {
		require.NoError(v.t, v.slots[i].Cancel(v.t.Context()))
		v.slots = slices.Delete(v.slots, i, i+1)
	}
}

// envelope is what a limit allows in an interval of that length, both ends included.
func envelope(kind string, burst, perSecond float64, period, t time.Duration) float64 {
	count := perSecond * period.Seconds()
	switch kind {
	case "token_bucket":
		return burst + perSecond*t.Seconds()
	case "spacing":
		return 1 + perSecond*(t+time.Microsecond).Seconds()
	case "interval_bucket":
		return burst + min(count, burst)*float64(t/period+1)
	case "sliding_window", "sliding_log":
		return count * float64(t/period+1)
	default:
		return count * float64(t/period+2)
	}
}

func rateOf(l policy.Limit) float64 { return float64(l.Rate.Count) / l.Rate.Period.Seconds() }

// usableRate is the rate at which a limit starts at least, of which nothing is left.
func usableRate(kind string, l policy.Limit) float64 {
	switch kind {
	case "interval_bucket":
		return float64(min(l.Rate.Count, l.Burst)) / l.Rate.Period.Seconds()
	case "sliding_window":
		return rateOf(l) * 10 / 11
	case "spacing": // which saves nothing up from one step of the story to the next
		return 1 / (1/rateOf(l) + versionsStep.Seconds())
	default:
		return rateOf(l)
	}
}

// most is what the looser numbers allow in an interval. Of two limits neither of which is
// the looser one, one may have the larger burst, and the other the higher rate.
func (v *versions) most(t time.Duration) float64 {
	a, b := v.limits[0], v.limits[1]
	both := max(envelope(v.kind, float64(a.Burst), rateOf(a), a.Rate.Period, t), envelope(v.kind, float64(b.Burst), rateOf(b), b.Rate.Period, t))
	looser := func(a, b policy.Limit) bool {
		return a.Rate.Period == b.Rate.Period && a.Rate.Count >= b.Rate.Count && a.Burst >= b.Burst ||
			(v.kind == "token_bucket" || v.kind == "spacing") && rateOf(a) >= rateOf(b) && a.Burst >= b.Burst
	}
	if looser(a, b) || looser(b, a) {
		return both
	}
	burst := envelope(v.kind, float64(max(a.Burst, b.Burst)), 0, a.Rate.Period, 0)
	for _, l := range v.limits {
		burst = max(burst, envelope(v.kind, float64(l.Burst), rateOf(l), l.Rate.Period, 0))
	}
	return burst + max(rateOf(a), rateOf(b))*t.Seconds()
}

// versionsStep is how often processes ask.
const versionsStep = 10 * time.Millisecond

// versionedKinds are the kinds of limits that have numbers of time.
var versionedKinds = []string{
	"token_bucket", "interval_bucket", "fixed_window_clock", "fixed_window_first", "sliding_window", "sliding_log", "spacing",
}

// eachTwoVersions tells stories of two versions of a limit's numbers, in which as many are
// asked for as there are, and judges them: never more starts than the looser numbers allow,
// nor less than that share of what the stricter ones do. At each step something else happens,
// too.
func eachTwoVersions(
	t *testing.T, stories uint64, waits []time.Duration, share float64, also func(v *versions, random *rand.Rand, now time.Duration),
) {
	t.Helper()
	for _, kind := range versionedKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			eachStory(t, stories, 1, func(t *testing.T, start makeLimiter, seed uint64) {
				random := rand.New(rand.NewPCG(seed, 77))
				limits := randomVersions(random, kind)
				demand := random.IntN(4) // by both, the one, the other, or in turns
				wait := waits[random.IntN(len(waits))]
				story := fmt.Sprintf("story %d: %s and %s, demand %d, wait %s", seed, limits[0].String(), limits[1].String(), demand, wait)
				v := newVersions(start(limits[0]), kind, limits)
				const step, lasts = versionsStep, 6 * time.Second
				for now := time.Duration(0); now < lasts; now += step {
					v.at(now)
					for _, process := range random.Perm(2) {
						switch demand {
						case 0:
						case 3:
							if int(now/(700*time.Millisecond))%2 != process {
								continue
							}
						default:
							if process != demand-1 && now%time.Second != 0 { // now and then
								continue
							}
						}
						v.ask(process, wait)
					}
					also(v, random, now)
				}
				v.judge(story, noon.Add(lasts), share)
			})
		})
	}
}

// Laws 1, 6 and 9 while two versions of a limit's numbers are in use.
func TestTwoVersionsOfNumbers(t *testing.T) {
	t.Parallel()
	waits := []time.Duration{0, 0, 300 * time.Millisecond}
	eachTwoVersions(t, 8, waits, 0.9, func(*versions, *rand.Rand, time.Duration) {})
}

// Law 1 where slots ahead are given back, too.
func TestTwoVersionsGiveBack(t *testing.T) {
	t.Parallel()
	eachTwoVersions(t, 3, []time.Duration{300 * time.Millisecond, time.Second}, 0, (*versions).giveBack)
}

func (v *versions) judge(story string, end time.Time, share float64) {
	v.t.Helper()
	starts := make([]time.Time, len(v.slots))
	for i, slot := range v.slots {
		starts[i] = slot.At
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i, from := range starts {
		for j := i; j < len(starts); j += 1 + (len(starts)-i)/40 {
			if most := v.most(starts[j].Sub(from)); float64(j-i+1) > most+1e-6 {
				require.Fail(v.t, "over", "%s: %d starts in %s from %s on; the looser numbers allow %.1f",
					story, j-i+1, starts[j].Sub(from), from.Sub(noon), most)
			}
		}
	}
	least := share * min(usableRate(v.kind, v.limits[0]), usableRate(v.kind, v.limits[1])) * end.Sub(noon).Seconds()
	within := len(starts)
	for within > 0 && starts[within-1].After(end) {
		within--
	}
	assert.GreaterOrEqual(v.t, float64(within), least-1, story)
}

// What the faster of two versions takes leaves the slower one empty, and no emptier; and if it
// owes more already, as it has slots ahead, it owes no less then.
func TestSlowerNumbersAreAtMostEmpty(t *testing.T) {
	t.Parallel()
	interval := func(count int64, period time.Duration, burst int64) policy.Limit {
		limit := bucket("l", count, period, burst)
		limit.Refill = policy.RefillInterval
		return limit
	}
	for name, test := range map[string]struct {
		slow, fast policy.Limit
		next       time.Duration // when it may start if the other took the last at 3 s
	}{
		"token_bucket":    {bucket("l", 1, 10*time.Second, 2), bucket("l", 10, time.Second, 10), 13 * time.Second},
		"interval_bucket": {interval(1, 10*time.Second, 2), interval(10, time.Second, 10), 10 * time.Second},
		"spacing":         {spacing("l", 1, 10*time.Second), spacing("l", 10, time.Second), 13 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				const slow, fast = 0, 1
				var v *versions
				asks := func(at time.Duration, process int, wait time.Duration) {
					v.at(at)
					before := len(v.slots)
					v.ask(process, wait)
					require.Greater(t, len(v.slots), before, at)
				}
				next := func() time.Duration {
					d, err := v.limiters[slow].Peek(t.Context(), request(0))
					require.NoError(t, err)
					return d.At.Sub(noon)
				}
				v = newVersions(newTestLimiterOn(t, server, test.slow), name, [2]policy.Limit{test.slow, test.fast})
				asks(0, slow, 0)
				v.ask(fast, 0) // which is counted anew from here on
				asks(2*time.Second, fast, 0)
				asks(3*time.Second, fast, 0)
				assert.Equal(t, test.next, next())

				if name == "interval_bucket" {
					return // which is blocked for others until the latest slot ahead
				}
				v = newVersions(newTestLimiterOn(t, server, test.slow), name, [2]policy.Limit{test.slow, test.fast})
				asks(0, fast, 0)
				asks(0, slow, time.Minute)
				want := next()
				if name == "spacing" { // what is free before a start of other numbers may not be any more
					require.NoError(t, v.slots[3].Cancel(t.Context()))
					require.Less(t, next(), want)
				}
				asks(time.Second, fast, 0)
				assert.Equal(t, want, next(), "with slots ahead")
			})
		})
	}
}

// The figure of before: 328 starts in a second.
func TestTwoVersionsOfABucket(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		v := newVersions(newTestLimiterOn(t, server, bucket("l", 1, time.Second, 1)), "token_bucket",
			[2]policy.Limit{bucket("l", 100, time.Second, 20), bucket("l", 50, time.Second, 20)})
		for now := time.Duration(0); now <= time.Second; now += 5 * time.Millisecond {
			v.at(now)
			v.ask(0, 0)
			v.ask(1, 0)
		}
		assert.Equal(t, 120, len(v.slots))
	})
}

// A changed count keeps the window that is open, and the share that was used of it; and
// what older numbers took comes back to those alone.
func TestWindowOutlivesAChange(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newTestLimiterOn(t, server, window("w", 100, time.Hour, policy.AnchorFirst))
		var held []*throttle.Reservation
		for range 100 {
			held = append(held, b.reserve(0))
		}
		b.at(59 * time.Minute)
		require.Equal(t, time.Minute, b.reserve(0).RetryAfter())
		b.change(window("w", 200, time.Hour, policy.AnchorFirst))
		require.Equal(t, time.Minute, b.reserve(0).RetryAfter())

		b.change(window("w", 10, time.Hour, policy.AnchorFirst))
		require.Equal(t, throttle.Denied, b.reserve(0).Outcome)
		for _, r := range held[:10] {
			require.NoError(t, r.Cancel(t.Context()))
		}
		assert.Equal(t, throttle.Denied, b.reserve(0).Outcome)
		b.change(window("w", 100, time.Hour, policy.AnchorFirst))
		for i := range 11 {
			assert.Equal(t, i < 10, b.reserve(0).Outcome == throttle.Granted, strconv.Itoa(i))
		}
	})
}

// What becomes of a reservation after an update is a matter of the numbers that it was made
// by: what is given back comes back to those alone, and what is taken beyond it is counted by
// all, also if nobody asks by its own numbers any more.
func TestSettledByTheNumbersItWasTakenBy(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost = "cost"
		other := limit
		other.Rate.Period /= 2
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			b := newTestLimiterOn(t, server, limit)
			look := func(limit policy.Limit) throttle.Decision {
				b.update(limit)
				d, err := b.limiter.Peek(t.Context(), request(0))
				require.NoError(t, err)
				return d
			}
			isMore := func(a, b throttle.Decision) bool {
				return a.Limits[0].Remaining > b.Limits[0].Remaining || a.Limits[0].ResetAfter < b.Limits[0].ResetAfter || a.At.Before(b.At)
			}
			first, second := b.reserve(time.Hour), b.reserve(time.Hour)
			b.update(other)
			require.Equal(t, throttle.Granted, b.reserve(time.Hour).Outcome)
			itsBefore, before := look(limit), look(other)
			require.NoError(t, second.Cancel(t.Context()))
			assert.Equal(t, before, look(other), "nothing comes back to others")
			assert.True(t, isMore(look(limit), itsBefore), "but to its own")

			b.update(other)
			for _, at := range []time.Duration{0, 40 * time.Second, 80 * time.Second} { // by then its own view has ended
				b.at(at)
				require.Equal(t, throttle.Granted, b.reserve(time.Hour).Outcome)
				before := look(other)
				require.NoError(t, first.Adjust(t.Context(), map[string]string{"cost": strconv.Itoa(3 + int(at/time.Second))}))
				assert.True(t, isMore(before, look(other)), at)
			}
		})
	}, "sliding_log", "concurrency")
}

// A view that nobody asks ends, and then the state is as short as before.
func TestViewsEnd(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		other := limit
		other.Rate.Count = 7
		b := newTestLimiter(t, limit)
		b.reserve(0)
		b.change(other)
		b.reserve(0)
		two := len(b.client.Get(t.Context(), "rm:{api}:l").Val())
		b.at(59 * time.Second)
		b.reserve(0)
		assert.Greater(t, len(b.client.Get(t.Context(), "rm:{api}:l").Val()), two/2)
		b.at(70 * time.Second)
		require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
		state := b.client.Get(t.Context(), "rm:{api}:l").Val()
		assert.Less(t, len(state), two*2/3, state)
		assert.Equal(t, "7/60s", state[:5])
	}, "sliding_log", "concurrency")
}

// Law 2: a denial after which views tell anew who asked forgets nothing that has passed by then,
// for the clock may be set back.
func TestDenialForgetsNothingThatHasPassed(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			limit.Rate.Period, limit.Cost = 10*time.Second, "cost"
			other := limit
			other.Rate.Count = 4
			b := newTestLimiterOn(t, server, other)
			b.reserve(0)
			b.change(limit)
			var slots []*throttle.Reservation
			for range 20 {
				slots = append(slots, b.reserve(time.Minute))
			}
			require.NoError(t, slots[8].Cancel(t.Context()))
			look := func() throttle.Decision {
				peeked, err := b.limiter.Peek(t.Context(), request(0))
				require.NoError(t, err)
				return peeked
			}
			before := look()
			b.at(slots[8].At.Sub(noon) + time.Second)
			require.Equal(t, throttle.Denied, b.reserve(0, "cost", "5").Outcome)
			b.at(0)
			after := look()
			assert.Equal(t, before.At, after.At)
			assert.Equal(t, before.Limits, after.Limits)
		})
	}, "sliding_log", "concurrency")
}

// What a process takes is counted by the numbers of all others, however many there are.
func TestThreeVersionsAreAllCounted(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		eachStory(t, 1, 1, func(t *testing.T, start makeLimiter, _ uint64) {
			b := start(limit)
			limiters := []*throttle.Limiter{b.limiter} // the first is the slowest
			for _, period := range []time.Duration{30 * time.Second, 20 * time.Second} {
				faster := limit
				faster.Rate.Period = period
				b.change(faster)
				limiters = append(limiters, b.limiter)
			}
			ask := func(process int) throttle.Outcome {
				r, err := limiters[process].Reserve(t.Context(), request(0))
				require.NoError(t, err)
				return r.Outcome
			}
			for _, process := range []int{0, 1, 2, 0, 0} {
				require.Equal(t, throttle.Granted, ask(process))
			}
			for process := range limiters {
				assert.Equal(t, throttle.Denied, ask(process), process)
			}
		})
	}, "sliding_log", "concurrency", "spacing") // which starts no five at once
}

// A slot far ahead by a long window lies in no more short ones than are kept of any limit.
func TestWindowsOfOtherNumbersAreBounded(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		long, short := window("w", 100, 24*time.Hour, policy.AnchorClock), window("w", 1, time.Hour, policy.AnchorClock)
		v := newVersions(newTestLimiterOn(t, server, long), "fixed_window_clock", [2]policy.Limit{long, short})
		v.ask(1, 0)
		for range 10 {
			for range 100 {
				r, err := v.limiters[0].Reserve(t.Context(), request(30*24*time.Hour))
				require.NoError(t, err)
				require.Equal(t, throttle.Granted, r.Outcome)
			}
		}
		assert.Less(t, len(v.client.Get(t.Context(), "rm:{api}:w").Val()), 300, "its state")
	})
}

// What counts by the longer of two periods is remembered as long as that, although those who
// count by the shorter one start all the time.
func TestLogOfTheLongerPeriod(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		long, short := slidingLog("log", 4, time.Minute), slidingLog("log", 100, time.Second)
		v := newVersions(newTestLimiterOn(t, server, long), "sliding_log", [2]policy.Limit{long, short})
		start := func(at time.Duration, process int) {
			v.at(at)
			r, err := v.limiters[process].Reserve(t.Context(), request(0, "cost", "1"))
			require.NoError(t, err)
			require.Equal(t, throttle.Granted, r.Outcome)
		}
		start(0, 0)
		start(0, 1)
		for range 2 {
			start(7*time.Second, 0)
		}
		start(62*time.Second, 1)
		r, err := v.limiters[0].Reserve(t.Context(), request(0, "cost", "1"))
		require.NoError(t, err)
		require.Equal(t, throttle.Granted, r.Outcome)
		assert.Equal(t, int64(0), r.Limits[0].Remaining, "two of seven seconds after, and two of now")
	})
}
