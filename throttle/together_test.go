package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Requests that travel together get the answers that they would get one by one, to
// the last number, whatever the limits and whatever the upstream has told; and what
// they took is given back alike.
func TestTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	eachStory(t, 16, 1, func(t *testing.T, start makeLimiter, seed uint64) {
		apart := decisions(start, seed, func(b *testLimiter, asks []throttle.Request) (got []*throttle.Reservation) {
			for _, ask := range asks {
				got = append(got, b.reserve(ask.MaxWait))
			}
			return got
		})
		together := decisions(start, seed, func(b *testLimiter, asks []throttle.Request) []*throttle.Reservation {
			got, err := throttle.ReserveTogether(b.limiter, asks...)
			require.NoError(t, err)
			return got
		})
		require.Equal(t, apart, together, "seed %d", seed)
	})
}

// decisions are what a random story comes to; the requests of one step are equal.
func decisions(
	start makeLimiter, seed uint64, reserve func(*testLimiter, []throttle.Request) []*throttle.Reservation,
) (made []throttle.Decision) {
	random := rand.New(rand.NewPCG(seed, 11))
	limits := make([]policy.Limit, 1+random.IntN(3))
	for i := range limits {
		limits[i] = randomJudged(random, fmt.Sprintf("l%d", i)).limit
	}
	b := start(limits...)
	if seed%2 == 0 {
		b.remake(policy.Policy{Limits: limits, Upstream: &policy.Upstream{}})
	}
	now := time.Duration(0)
	for range 40 {
		now += time.Duration(random.IntN(900)) * time.Millisecond << random.IntN(4)
		b.at(now)
		ask := request(time.Duration(random.IntN(2)*random.IntN(3000)) * time.Millisecond)
		got := reserve(b, slices.Repeat([]throttle.Request{ask}, 1+random.IntN(9)))
		for _, r := range got {
			made = append(made, r.Decision)
		}
		if r := got[random.IntN(len(got))]; r.Outcome == throttle.Granted {
			end(b.t, random, r)
		}
	}
	return made
}

// end cancels a reservation, or tells what the upstream said of it.
func end(t *testing.T, random *rand.Rand, r *throttle.Reservation) {
	t.Helper()
	said := throttle.Reading{
		Limit: 5, Remaining: random.Int64N(6), Reset: 3 * time.Second, Refills: random.IntN(3) == 0,
	}
	var err error
	switch how := random.IntN(8); {
	case how < 2:
		err = r.Cancel(t.Context())
	case how < 4:
		_, err = r.Reconcile(t.Context(), throttle.Observation{Close: map[string]time.Duration{"l0": 3 * time.Second}})
	case how < 7:
		_, err = r.Reconcile(t.Context(), throttle.Observation{Quotas: map[string]throttle.Reading{"l0": said}, Date: r.Now})
	default:
		_, err = r.Reconcile(t.Context(), throttle.Observation{Refused: true})
	}
	require.NoError(t, err)
}
