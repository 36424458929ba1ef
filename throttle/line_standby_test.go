package throttle_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// standby is a line of tasks before slots, in virtual time, with an ear for calls.
type standby struct {
	*simulation
	stirred chan string // policies
	called  chan string // tasks
	freed   chan time.Duration
}

// eachStandby plays a scenario of such a line on both servers.
func eachStandby(t *testing.T, policy policy.Policy, play func(t *testing.T, s *standby)) {
	t.Helper()
	eachSimulation(t, policy, func(t *testing.T, p *simulation) { play(t, newStandby(t, p)) })
}

func newStandby(t *testing.T, p *simulation) *standby {
	t.Helper()
	s := &standby{p, make(chan string, 100), make(chan string, 100), make(chan time.Duration, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		line.Signals(ctx, s.limiter, line.Listener{
			Policy: func(policy string) { s.stirred <- policy },
			Task:   func(task string) { s.called <- task },
			Freed:  func(_ string, held time.Duration) { s.freed <- held },
		})
	}()
	t.Cleanup(func() { cancel(); <-ended })
	for range 2 { // it listens to signals, and to calls
		hear(t, s.stirred)
	}
	return s
}

// hear returns what is told next.
func hear(t *testing.T, told <-chan string) string {
	t.Helper()
	select {
	case name := <-told:
		return name
	case <-time.After(throttle.Patience):
		t.Fatal("nothing was told")
		return ""
	}
}

// asks lets a task ask, which stays where it is for that long.
func (s *standby) asks(task string, wait time.Duration, attributes ...string) *throttle.Reservation {
	s.t.Helper()
	asks := request(wait, attributes...)
	asks.TaskID, asks.Park, asks.StandBy = task, true, true
	return s.reserve(asks)
}

func (s *standby) starts(task string, attributes ...string) *throttle.Reservation {
	s.t.Helper()
	r := s.asks(task, 0, attributes...)
	require.Equal(s.t, throttle.Granted, r.Outcome, task)
	return r
}

func (s *standby) standsBy(task string, wait time.Duration, attributes ...string) {
	s.t.Helper()
	r := s.asks(task, wait, attributes...)
	require.Equal(s.t, throttle.Denied, r.Outcome, task)
	require.NotNil(s.t, r.Place, task)
	require.True(s.t, r.Place.StandsBy, task)
}

func (s *standby) isParked(task string, attributes ...string) {
	s.t.Helper()
	r := s.asks(task, 0, attributes...)
	require.Equal(s.t, throttle.Denied, r.Outcome, task)
	require.NotNil(s.t, r.Place, task)
	require.False(s.t, r.Place.StandsBy, task)
}

// wakes returns whom a call wakes that may let so many stand by, of tasks that hold
// their slots for that long.
func (s *standby) wakes(standBy int, hold time.Duration) []string {
	s.t.Helper()
	call, err := s.limiter.Line("api").Wake(s.t.Context(), line.Waking{
		As: "us", Near: 350 * time.Millisecond, Hold: hold, StandBy: standBy,
	})
	require.NoError(s.t, err)
	var names []string
	for _, task := range call.Tasks {
		names = append(names, task.TaskID)
	}
	return names
}

func slotLimit(n int64) policy.Limit {
	return policy.Limit{Name: "slots", Algorithm: policy.Concurrency, Slots: n}
}

// A slot that is free goes to the first who stands by, wherever that is, and to nobody
// else who is quicker.
func TestFreedSlotIsHandedOver(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		a := s.starts("a")
		s.standsBy("b", time.Second)
		s.standsBy("c", time.Second)
		s.isParked("d") // its worker does not wait for it
		s.at(300 * time.Millisecond)
		require.NoError(t, a.Release(t.Context()))
		assert.Equal(t, "b", hear(t, s.called))
		assert.Equal(t, 300*time.Millisecond, <-s.freed)
		s.isParked("x")
		s.isParked("d")
		s.standsBy("c", time.Second)
		b := s.starts("b")
		s.standsBy("c", time.Second)

		require.NoError(t, b.Cancel(t.Context()))
		assert.Equal(t, "c", hear(t, s.called))
		c := s.starts("c")
		require.NoError(t, c.Release(t.Context()))
		assert.Equal(t, []string{"d"}, s.wakes(0, 0), "nobody stood by")
		s.starts("d")
		assert.Empty(t, s.called)
	})
}

// A frozen policy is no slot to stand by for.
func TestNobodyStandsByInAFreeze(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		require.NoError(t, s.limiter.Freeze(t.Context(), "api", time.Minute))
		s.isParked("a")
	})
}

// Whom a slot was handed to has half a second to ask. Then it is the next one's.
func TestHandedSlotIsNotKeptForLong(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		a := s.starts("a")
		s.standsBy("killed", time.Second)
		s.standsBy("c", time.Second)
		require.NoError(t, a.Release(t.Context()))
		assert.Equal(t, "killed", hear(t, s.called))
		s.at(499 * time.Millisecond)
		s.standsBy("c", time.Second)
		s.at(500 * time.Millisecond)
		s.starts("c")
	})
}

// Who gives no sign of life for three seconds is woken like one that never came.
func TestWhoStandsByShowsSignsOfLife(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		s.starts("a")
		s.standsBy("killed", time.Second)
		s.standsBy("alive", time.Second)
		s.at(line.StandByTime)
		assert.Empty(t, s.wakes(5, time.Second))
		s.standsBy("alive", time.Second)
		s.at(3 * time.Second)
		assert.Equal(t, []string{"killed"}, s.wakes(5, time.Second))
	})
}

// Slots that nobody freed, because there are more of them or a lease ran out, go to
// those who stand by when the line is next looked at.
func TestMoreSlotsCallWhoStandsBy(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		s.starts("a")
		for _, task := range []string{"b", "c", "d"} {
			s.standsBy(task, time.Second)
		}
		s.config(policy.Policy{Limits: []policy.Limit{slotLimit(3)}})
		assert.Equal(t, []string{"b", "c"}, s.wakes(5, time.Second))
		s.starts("b")
		s.starts("c")
		s.standsBy("d", time.Second)
	})
}

// As many are woken ahead as slots will be free by the time that they can be there, in
// order; and never more than may stand by.
func TestWakingAheadOfSlots(t *testing.T) {
	t.Parallel()
	names := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("t%02d", i))
		}
		return names
	}
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		for i, test := range []struct {
			standBy int
			hold    time.Duration
			woken   int
		}{
			{100, 0, 0},                      // nobody knows
			{100, 11 * time.Second, 0},       // it would not matter
			{100, 450 * time.Millisecond, 2}, // 350 ms until it is there, and 100 until the next look
			{100, 300 * time.Millisecond, 3},
			{100, 9 * time.Second, 1},
			{100, 90 * time.Millisecond, 10},
			{4, 90 * time.Millisecond, 4},
			{0, 90 * time.Millisecond, 0},
		} {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				empty(t, server.Client())
				s := newStandby(t, newSimulation(t, server, policy.Policy{Limits: []policy.Limit{slotLimit(2)}}))
				a, b := s.starts("a"), s.starts("b")
				for _, task := range names(12) {
					s.isParked(task)
				}
				assert.ElementsMatch(t, names(test.woken), s.wakes(test.standBy, test.hold))
				assert.Empty(t, s.wakes(test.standBy, test.hold), "they are on their way")
				if test.woken < 2 {
					return
				}
				s.standsBy("t01", 0) // which comes first
				s.standsBy("t00", 0)
				require.NoError(t, a.Release(t.Context()))
				assert.Equal(t, "t00", hear(t, s.called))
				s.starts("t00")
				require.NoError(t, b.Release(t.Context()))
				assert.Equal(t, "t01", hear(t, s.called))
				s.starts("t01")
				assert.Equal(t, names(test.woken + 1)[test.woken:], s.wakes(test.woken-1, test.hold))
			})
		}
	})
}

// Each key has those who stand by for its own slots, and lanes take turns.
func TestKeysHaveTheirOwnStandbys(t *testing.T) {
	perTenant := slotLimit(1)
	perTenant.Per = "tenant"
	eachStandby(t, policy.Policy{Limits: []policy.Limit{perTenant}, Lane: "tenant"}, func(t *testing.T, s *standby) {
		big := s.starts("big/run", "tenant", "big")
		s.starts("small/run", "tenant", "small")
		for i := range 5 {
			s.isParked(fmt.Sprintf("big/%d", i), "tenant", "big")
		}
		s.isParked("small/0", "tenant", "small")
		assert.Equal(t, []string{"big/0", "small/0", "big/1"}, s.wakes(10, 300*time.Millisecond))
		s.standsBy("small/0", 0, "tenant", "small")
		s.standsBy("big/0", 0, "tenant", "big")
		require.NoError(t, big.Release(t.Context()))
		assert.Equal(t, "big/0", hear(t, s.called))
	})
}

// A task that will stand by no longer goes back to its place, and gives up what was
// handed to it. So does one that lacks something else by then.
func TestWhoStoodByGoesBackToItsPlace(t *testing.T) {
	policy := policy.Policy{Limits: []policy.Limit{slotLimit(1), bucket("rate", 1, 10*time.Second, 1)}}
	eachStandby(t, policy, func(t *testing.T, s *standby) {
		a := s.starts("a")
		s.at(10 * time.Second) // there is a token, but no slot
		s.standsBy("b", time.Second)
		s.standsBy("c", time.Second)
		other := s.reserve(throttle.Request{Policy: "api", TaskID: "a"}) // it has the slot
		require.Equal(t, throttle.Granted, other.Outcome)
		require.NoError(t, other.Release(t.Context()))
		require.NoError(t, a.Release(t.Context()))
		assert.Equal(t, "b", hear(t, s.called))
		s.isParked("b") // for want of a token
		held, err := s.limiter.Peek(t.Context(), throttle.Request{Policy: "api"})
		require.NoError(t, err)
		assert.EqualValues(t, 1, held.Limits[0].Remaining, "it gave the slot back")

		c := s.reserve(throttle.Request{Policy: "api", TaskID: "c", Park: true})
		require.NotNil(t, c.Place)
		assert.False(t, c.Place.StandsBy)
		assert.EqualValues(t, 2, c.Place.Position)
		s.at(20 * time.Second)
		assert.Equal(t, []string{"b"}, s.wakes(0, 0))
		s.starts("b")
	})
}

// Who needs more slots than are free holds up those behind, and so gets them.
func TestDearTasksAreHandedTheirSlots(t *testing.T) {
	weighed := slotLimit(3)
	weighed.Cost = "weight"
	eachStandby(t, policy.Policy{Limits: []policy.Limit{weighed}}, func(t *testing.T, s *standby) {
		a, b := s.starts("a", "weight", "1"), s.starts("b", "weight", "2")
		s.standsBy("dear", time.Second, "weight", "3")
		s.standsBy("cheap", time.Second, "weight", "1")
		require.NoError(t, a.Release(t.Context()))
		s.standsBy("cheap", time.Second, "weight", "1")
		require.NoError(t, b.Release(t.Context()))
		assert.Equal(t, "dear", hear(t, s.called))
		dear := s.starts("dear", "weight", "3")
		require.NoError(t, dear.Release(t.Context()))
		assert.Equal(t, "cheap", hear(t, s.called))
		assert.Empty(t, s.called)
	})
}
