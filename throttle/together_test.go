package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
)

// Requests that travel together get the answers that they would get one by one, to
// the last number, whatever the limits and whatever the upstream has told; and what
// they took is given back alike.
func TestTogetherAsOneByOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		random := rand.New(rand.NewPCG(seed, 11))
		limits := make([]throttle.Limit, 1+random.IntN(3))
		for i := range limits {
			limits[i] = randomJudged(random, fmt.Sprintf("l%d", i)).limit
		}
		together, apart := newTestLimiter(t, limits...), newTestLimiter(t, limits...)
		if seed%2 == 0 {
			together, apart = newTold(t, throttle.Upstream{}, limits...).testLimiter, newTold(t, throttle.Upstream{}, limits...).testLimiter
		}
		now := time.Duration(0)
		for step := range 40 {
			now += time.Duration(random.IntN(900)) * time.Millisecond << random.IntN(4)
			together.at(now)
			apart.at(now)
			ask := request(time.Duration(random.IntN(2)*random.IntN(3000)) * time.Millisecond)
			n := 1 + random.IntN(9)
			asks := make([]throttle.Request, n)
			for i := range asks {
				asks[i] = ask
			}
			got, err := throttle.ReserveTogether(together.limiter, asks...)
			require.NoError(t, err)
			wanted := make([]*throttle.Reservation, n)
			for i := range wanted {
				wanted[i] = apart.reserve(ask.MaxWait)
				require.Equal(t, wanted[i].Decision, got[i].Decision, "seed %d, step %d, request %d of %d", seed, step, i, n)
			}
			if i := random.IntN(n); got[i].Outcome == throttle.Granted {
				endAlike(t, random, got[i], wanted[i])
			}
		}
	}
}

// endAlike cancels both reservations, or tells of both what the upstream said.
func endAlike(t *testing.T, random *rand.Rand, both ...*throttle.Reservation) {
	t.Helper()
	said := throttle.Reading{
		Limit: 5, Remaining: random.Int64N(6), Reset: 3 * time.Second, Refills: random.IntN(3) == 0,
	}
	how := random.IntN(8)
	for _, r := range both {
		var err error
		switch {
		case how < 2:
			err = r.Cancel(t.Context())
		case how < 4:
			_, err = r.Reconcile(t.Context(), throttle.Observation{Close: map[string]time.Duration{"l0": 3 * time.Second}})
		case how < 7:
			_, err = r.Reconcile(t.Context(), throttle.Observation{Quotas: map[string]throttle.Reading{"l0": said}})
		default:
			_, err = r.Reconcile(t.Context(), throttle.Observation{Refused: true})
		}
		require.NoError(t, err)
	}
}
