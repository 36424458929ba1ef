package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Law 12 for everything that a waiting line keeps: whatever happens, and in which order,
// no key is ever there without an expiry. That every test ends without one is checked by
// its server.
func TestEveryKeyExpiresAtEveryMoment(t *testing.T) {
	t.Parallel()
	eachStory(t, 20, 5, func(t *testing.T, make makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 12))
		s := &expiry{testLimiter: make(bucket("rate", 2, time.Second, 2)), random: random}
		s.update()
		var told []string
		for range 200 {
			what := s.step()
			told = append(told, what)
			if len(told) > 12 {
				told = told[1:]
			}
			allExpire(t, s.client, "seed %d, after:\n%s", seed, strings.Join(told, "\n"))
		}
	})
}

// expiry is a random story of few tasks before few limits.
type expiry struct {
	*testLimiter
	random  *rand.Rand
	now     time.Duration
	woken   []line.WokenTask
	granted []*throttle.Reservation
}

// update gives the policy other numbers, and now and then other lanes.
func (s *expiry) update() {
	own := bucket("own", 1+s.random.Int64N(2), time.Second, 2)
	own.Per = "tenant"
	limits := [][]policy.Limit{
		{bucket("rate", 2, time.Second, 2), own}, {slotLimit(1)}, {own}, {bucket("rate", 1, time.Second, 1), slotLimit(2)},
	}
	s.remake(policy.Policy{Lane: []string{"", "tenant", "region"}[s.random.IntN(3)], Limits: limits[s.random.IntN(len(limits))]})
}

// step does something at random, and tells what.
func (s *expiry) step() string {
	s.t.Helper()
	ctx := s.t.Context()
	task := fmt.Sprintf("q/%d", s.random.IntN(8))
	ask := request(time.Duration(s.random.IntN(2))*time.Second, "tenant", fmt.Sprint(s.random.IntN(3)), "region", "eu")
	ask.TaskID, ask.Park, ask.StandBy = task, s.random.IntN(8) > 0, s.random.IntN(2) == 0
	switch s.random.IntN(12) {
	default:
		r := s.asks(ask)
		return fmt.Sprintf("ask %s of tenant %s: %s, held by %s", task, ask.Attributes["tenant"], r.Outcome, r.HeldBy)
	case 0, 1, 2:
		call, err := s.limiter.Line("api").Wake(ctx, line.Waking{
			As: "us", Near: near, Hold: time.Second, StandBy: 3, Gone: s.gone(), Leaves: s.random.IntN(8) == 0,
		})
		require.NoError(s.t, err)
		s.woken = call.Tasks
		return fmt.Sprint("wake ", len(s.woken))
	case 3:
		_, err := s.limiter.Join(ctx, ask, time.Time{})
		require.NoError(s.t, err)
		return "join " + task
	case 4:
		require.NoError(s.t, s.limiter.Line("api").Review(ctx))
		return "review"
	case 5:
		call, err := s.limiter.Line("api").Recall(ctx, line.Waking{As: "us", Near: near})
		require.NoError(s.t, err)
		return fmt.Sprint("recall ", len(call.Tasks))
	case 6:
		s.now += time.Duration(s.random.IntN(2000)) * time.Millisecond
		s.at(s.now)
		return "later: " + s.now.String()
	case 7, 8:
		return s.end()
	case 9:
		if s.random.IntN(4) > 0 {
			return "nothing"
		}
		s.update()
		return "update"
	}
}

func (s *expiry) asks(request throttle.Request) *throttle.Reservation {
	s.t.Helper()
	r, err := s.limiter.Reserve(s.t.Context(), request)
	require.NoError(s.t, err)
	if r.Outcome == throttle.Granted {
		s.granted = append(s.granted, r)
	}
	return r
}

// gone are some of those that were woken.
func (s *expiry) gone() []line.WokenTask {
	if s.random.IntN(2) == 0 {
		return nil
	}
	return s.woken
}

// end ends a task that started, or has it not start after all.
func (s *expiry) end() string {
	s.t.Helper()
	if len(s.granted) == 0 {
		return "nothing"
	}
	r := s.granted[0]
	s.granted = s.granted[1:]
	if s.random.IntN(2) == 0 {
		require.NoError(s.t, r.Cancel(s.t.Context()))
		return "cancel"
	}
	require.NoError(s.t, r.Release(s.t.Context()))
	return "release"
}
