package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// judged is a limit and what its law says of the starts under it.
type judged struct {
	limit policy.Limit
	most  int64
	count func([]time.Time) int
}

// randomJudged returns a random limit on starts of cost 1.
func randomJudged(random *rand.Rand, name string) judged {
	count, burst := 1+random.Int64N(8), 1+random.Int64N(5)
	period := time.Duration(1+random.Int64N(40)) * 50 * time.Millisecond
	rate := policy.Rate{Count: count, Period: period}
	switch random.IntN(6) {
	case 0:
		return judged{
			bucket(name, count, period, burst), burst,
			func(starts []time.Time) int { return throttletest.MaxBurst(starts, count, period) },
		}
	case 1:
		limit := bucket(name, count, period, burst)
		limit.Refill = policy.RefillInterval
		return judged{
			limit, burst + min(count, burst),
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, period) },
		}
	case 2:
		return judged{
			policy.Limit{Name: name, Algorithm: policy.FixedWindow, Rate: rate}, count,
			func(starts []time.Time) int { return throttletest.MaxPerWindow(starts, period, time.Unix(0, 0)) },
		}
	case 5:
		return judged{spacing(name, count, period), 1, apart(count, period)}
	case 3:
		return judged{
			policy.Limit{Name: name, Algorithm: policy.SlidingLog, Rate: rate}, count,
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, period) },
		}
	default:
		return judged{
			policy.Limit{Name: name, Algorithm: policy.SlidingWindow, Rate: rate, Precision: period / 5}, count,
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, period) },
		}
	}
}

// Laws 1 and 2 for any combination of limits, shared and per key, with slots ahead,
// cancels and time going on: no limit ever sees too many starts, and a denial
// leaves Redis as it was, to the byte.
func TestCombinationsKeepEveryLimit(t *testing.T) {
	t.Parallel()
	eachStory(t, 60, 2, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 11))
		judges := make([]judged, 1+random.IntN(4))
		limits := make([]policy.Limit, len(judges))
		for i := range judges {
			judges[i] = randomJudged(random, fmt.Sprintf("l%d", i))
			if i > 0 && random.IntN(2) == 0 {
				judges[i].limit.Per = "user"
			}
			limits[i] = judges[i].limit
		}
		granted := combine(start(limits...), random)
		for i, judge := range judges {
			starts := map[string][]time.Time{}
			for _, r := range granted {
				key := r.Limits[i].Key
				starts[key] = append(starts[key], r.At)
			}
			for key, at := range starts {
				require.LessOrEqual(t, int64(judge.count(at)), judge.most, "seed %d, %s, key %q", seed, judge.limit.String(), key)
			}
		}
	})
}

// combine lets requests of two users come and go, and returns what was granted and
// not given back.
func combine(b *testLimiter, random *rand.Rand) (granted []*throttle.Reservation) {
	b.t.Helper()
	var now time.Duration
	for range 80 {
		switch n := random.IntN(10); {
		case n < 6:
			before := b.contents()
			r := b.reserve(time.Duration(random.IntN(3))*time.Second, "user", fmt.Sprint(random.IntN(2)))
			if r.Outcome == throttle.Granted {
				granted = append(granted, r)
			} else {
				require.Equal(b.t, before, b.contents())
			}
		case n < 7 && len(granted) > 0:
			i := random.IntN(len(granted))
			if granted[i].At.After(noon.Add(now)) { // not started yet
				require.NoError(b.t, granted[i].Cancel(b.t.Context()))
				granted = append(granted[:i], granted[i+1:]...)
			}
		default:
			now += time.Duration(random.Int64N(int64(700 * time.Millisecond))).Truncate(time.Microsecond)
			b.at(now)
		}
	}
	return granted
}

// A slot that another limit put off finds its tokens when its time comes, however
// much was asked of the shared limit before.
func TestPutOffSlotsKeepTheirTokens(t *testing.T) {
	t.Parallel()
	interval := bucket("shared", 1, time.Second, 5)
	interval.Refill = policy.RefillInterval
	for name, shared := range map[string]policy.Limit{
		"smooth": bucket("shared", 1, time.Second, 5), "interval": interval,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := window("own", 1, 10*time.Second, policy.AnchorClock)
			own.Per = "user"
			b := newTestLimiter(t, shared, own)
			var starts []time.Time
			ask := func(user string, wait time.Duration) {
				if r := b.reserve(wait, "user", user); r.Outcome == throttle.Granted {
					starts = append(starts, r.At)
				}
			}
			for _, user := range []string{"a", "b", "c", "d", "e"} {
				ask(user, time.Minute) // now
				ask(user, time.Minute) // in its next window
			}
			require.Len(t, starts, 10)
			b.at(9900 * time.Millisecond)
			for _, user := range []string{"v", "w", "x", "y", "z"} {
				ask(user, 0)
			}
			most := throttletest.MaxBurst(starts, 1, time.Second)
			require.LessOrEqual(t, most, 6, "a bucket of 5 and a refill")
		})
	}
}
