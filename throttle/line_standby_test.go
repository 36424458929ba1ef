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

// standby is a line of tasks before slots, in virtual time, with an ear for calls. Tasks
// that stood by when they last asked say so.
type standby struct {
	*simulation
	stirred chan string // policies
	called  chan string // tasks
	slots   chan line.Slot
	freed   chan time.Duration
	stood   map[string]*throttle.Reservation
}

// eachStandby plays a scenario of such a line on both servers.
func eachStandby(t *testing.T, policy policy.Policy, play func(t *testing.T, s *standby)) {
	t.Helper()
	eachSimulation(t, policy, func(t *testing.T, p *simulation) { play(t, newStandby(t, p)) })
}

func newStandby(t *testing.T, p *simulation) *standby {
	t.Helper()
	s := &standby{p, make(chan string, 100), make(chan string, 100), make(chan line.Slot, 100), make(chan time.Duration, 100), map[string]*throttle.Reservation{}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		line.Signals(ctx, s.limiter, line.Listener{
			Policy: func(policy string) { s.stirred <- policy },
			Task:   func(task string, slot line.Slot) { s.called <- task; s.slots <- slot },
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
	asks.TaskID, asks.StandBy = task, true
	return s.asksBy(asks)
}

// asksBy makes a request in line.
func (s *standby) asksBy(asks throttle.Request) *throttle.Reservation {
	s.t.Helper()
	asks.Park = true
	if stood := s.stood[asks.TaskID]; stood != nil {
		asks.Since = stood.Place.Since
	}
	r := s.reserve(asks)
	delete(s.stood, asks.TaskID)
	if r.Place != nil && r.Place.StandsBy {
		s.stood[asks.TaskID] = r
	}
	return r
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

// Whom a slot was handed to has a second to give a sign of life. Then it is the next one's.
func TestHandedSlotIsNotKeptForLong(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		a := s.starts("a")
		s.standsBy("killed", time.Second)
		s.at(time.Microsecond)
		s.standsBy("c", time.Second)
		require.NoError(t, a.Release(t.Context()))
		assert.Equal(t, "killed", hear(t, s.called))
		s.at(time.Second)
		s.standsBy("c", time.Second)
		s.at(time.Second + time.Microsecond)
		s.starts("c")
	})
}

// Who died while it stood by is handed a slot like others, and costs that slot for as long
// as it is kept. Nobody behind waits for it otherwise, and nobody wakes it.
func TestDeadOnesStandByAmongOthers(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(2)}}, func(t *testing.T, s *standby) {
		a, b := s.starts("a"), s.starts("b")
		for _, task := range []string{"c-killed", "d", "e"} {
			s.standsBy(task, time.Second)
			s.at(s.now + time.Microsecond)
		}
		s.at(longAfter)
		require.NoError(t, a.Release(t.Context()))
		assert.Equal(t, "c-killed", hear(t, s.called))
		require.NoError(t, b.Release(t.Context()))
		assert.Equal(t, "d", hear(t, s.called), "nobody waits for the one before it")
		<-s.slots
		require.True(t, s.stood["d"].Accept(<-s.slots))
		s.renews("d")
		assert.Empty(t, s.wakes(5, time.Second))
		s.standsBy("e", time.Second)
		s.at(longAfter + time.Second)
		s.starts("e")
		assert.Empty(t, s.wakes(5, time.Second))
	})
}

// longAfter it asked, a task that is handed a slot is certain of it although this process
// stood still for seconds: it knows of no other time than its own.
const longAfter = 5 * time.Second

// handed returns what a task hears that is called, and the slot that it was handed.
func (s *standby) handed() (task string, slot line.Slot) {
	s.t.Helper()
	return hear(s.t, s.called), <-s.slots
}

// renews has a task that accepted its slot show that it runs, which it must.
func (s *standby) renews(task string) {
	s.t.Helper()
	held, err := throttle.RenewCall(s.t.Context(), s.stood[task], time.Time{})
	require.NoError(s.t, err)
	require.True(s.t, held, task)
}

// Who is handed a slot need not ask: what it hears is a reservation like another, which it
// can keep and give back. Repeated calls change nothing.
func TestHandedSlotIsAReservation(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		a := s.starts("a")
		for i, task := range []string{"b", "c", "d"} {
			s.at(time.Duration(i) * time.Millisecond)
			s.standsBy(task, time.Second)
		}
		s.at(longAfter)
		require.NoError(t, a.Release(t.Context()))
		require.NoError(t, throttle.ReleaseCall(t.Context(), a), "which is made again")
		task, slot := s.handed()
		require.Equal(t, "b", task)
		require.Empty(t, s.called, "a slot is handed over once")
		assert.False(t, s.stood["c"].Accept(line.Slot{}), "it was not handed anything")

		b := s.stood["b"]
		require.True(t, b.Accept(slot))
		assert.Equal(t, throttle.Granted, b.Outcome)
		assert.Equal(t, slot.Born, b.At.UnixMicro())
		assert.Zero(t, b.RetryAfter())
		require.NoError(t, b.Wait(t.Context()))
		assert.False(t, b.Accept(slot), "it has it")
		s.at(longAfter + 900*time.Millisecond)
		s.renews("b")
		s.at(20 * time.Second)
		s.standsBy("c", time.Second)
		s.at(20*time.Second + longAfter)
		require.NoError(t, b.Release(t.Context()))
		task, slot = s.handed()
		require.Equal(t, "c", task)
		require.True(t, s.stood["c"].Accept(slot))
		require.NoError(t, s.stood["c"].Cancel(t.Context()), "its process ends")
		task, _ = s.handed()
		assert.Equal(t, "d", task)
	})
}

// A slot is accepted only by who can be certain that its lease has not ended, and that was
// handed it after it had asked: a process may stand still for any time.
func TestHandedSlotIsNotAcceptedTooLate(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		a := s.starts("a")
		s.standsBy("frozen", time.Second)
		s.at(longAfter)
		require.NoError(t, a.Release(t.Context()))
		_, slot := s.handed()
		frozen := s.stood["frozen"]
		for name, other := range map[string]line.Slot{
			"it has ended for all that is known": {Born: slot.Born, Ends: frozen.Now.UnixMicro() + 1},
			"it was handed before":               {Born: frozen.Now.UnixMicro() - 1, Ends: slot.Ends},
		} {
			assert.False(t, frozen.Accept(other), name)
		}

		s.at(longAfter + time.Second) // the lease has ended
		other := s.starts("other")
		require.True(t, frozen.Accept(slot), "it believes so")
		held, err := throttle.RenewCall(t.Context(), frozen, noon.Add(time.Hour))
		require.NoError(t, err)
		assert.False(t, held, "but gets it back only when it is free")
		require.NoError(t, other.Release(t.Context()))
		held, err = throttle.RenewCall(t.Context(), frozen, noon.Add(time.Hour))
		require.NoError(t, err)
		assert.True(t, held)
	})
}

// What needs more than a slot of one limit asks when it is called, and so does who is
// handed a slot in a freeze, or whose limits are not in force any more.
func TestHandedSlotMayHaveToBeAskedFor(t *testing.T) {
	one, two := slotLimit(1), []policy.Limit{slotLimit(1), bucket("rate", 100, time.Second, 100)}
	for name, test := range map[string]struct {
		limits []policy.Limit
		meets  func(s *standby) error
		asks   bool
	}{
		"one limit":  {[]policy.Limit{one}, func(*standby) error { return nil }, false},
		"two limits": {two, func(*standby) error { return nil }, true},
		"a freeze":   {[]policy.Limit{one}, func(s *standby) error { return s.limiter.Freeze(s.t.Context(), "api", time.Minute) }, true},
		"an update":  {[]policy.Limit{one}, func(s *standby) error { s.config(policy.Policy{Limits: []policy.Limit{slotLimit(2)}}); return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			eachStandby(t, policy.Policy{Limits: test.limits}, func(t *testing.T, s *standby) {
				a := s.starts("a")
				s.standsBy("b", time.Second)
				require.NoError(t, test.meets(s))
				s.at(longAfter)
				require.NoError(t, a.Release(t.Context()))
				task, slot := s.handed()
				require.Equal(t, "b", task)
				assert.Equal(t, test.asks, !s.stood["b"].Accept(slot))
			})
		})
	}
}

// Who stands by is in no row, and can be asked for as others in line.
func TestWhereWhoStandsByIs(t *testing.T) {
	weighed := slotLimit(3)
	weighed.Cost, weighed.Per = "weight", "tenant"
	weighed.Headroom = policy.Headroom{Tokens: 1}
	eachStandby(t, policy.Policy{Limits: []policy.Limit{weighed}}, func(t *testing.T, s *standby) {
		s.starts("a", "weight", "2", "tenant", "x")
		s.at(time.Second)
		s.standsBy("b", time.Second, "weight", "2", "tenant", "x")
		asked := request(0, "weight", "2", "tenant", "x")
		asked.TaskID = "b"
		where, err := s.limiter.Where(t.Context(), asked)
		require.NoError(t, err)
		require.NotNil(t, where)
		assert.True(t, where.Woken)
		assert.Equal(t, "slots", where.HeldBy)
		assert.EqualValues(t, 1, where.Position)
		assert.True(t, noon.Add(time.Second).Equal(where.Since))
	})
}

// A call that is lost costs nothing but time: who asks by itself finds the slot, or its
// place if the slot is another's by then.
func TestLostCalls(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		a := s.starts("a")
		for i, task := range []string{"b", "c", "d"} {
			s.at(time.Duration(i) * time.Millisecond)
			s.standsBy(task, time.Second)
		}
		require.NoError(t, a.Release(t.Context()))
		s.at(900 * time.Millisecond)
		b := s.starts("b")
		require.NoError(t, b.Release(t.Context()))
		s.at(2 * time.Second)
		d := s.starts("d") // the lease of c has ended
		s.standsBy("x", time.Second)
		s.standsBy("c", time.Second)
		require.NoError(t, d.Release(t.Context()))
		for _, task := range []string{"b", "c", "c"} {
			called, _ := s.handed()
			assert.Equal(t, task, called)
		}
	})
}

// A task that is brought back while an earlier attempt of it stood by has one slot at most,
// and that is not cut short.
func TestRedeliveredTaskIsHandedNoSecondSlot(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(2)}}, func(t *testing.T, s *standby) {
		a, b := s.starts("a"), s.starts("b")
		s.standsBy("again", time.Second)
		s.at(time.Millisecond)
		s.standsBy("c", time.Second)
		again := s.reserve(throttle.Request{Policy: "api", TaskID: "a"}) // takes over
		require.Equal(t, throttle.Granted, again.Outcome)
		require.NoError(t, a.Release(t.Context()), "which has no slot any more")
		require.Empty(t, s.called)
		s.config(policy.Policy{Limits: []policy.Limit{slotLimit(3)}})
		redelivered := s.reserve(throttle.Request{Policy: "api", TaskID: "again"})
		require.Equal(t, throttle.Granted, redelivered.Outcome)
		require.NoError(t, b.Release(t.Context()))
		task, _ := s.handed()
		assert.Equal(t, "c", task)
		s.at(10 * time.Second)
		held, err := throttle.RenewCall(t.Context(), redelivered, time.Time{})
		require.NoError(t, err)
		assert.True(t, held)
	})
}

// Slots that nobody freed, because there are more of them or a lease ran out, are found by
// those who stand by when they next ask, and by others that come; they go to the first.
func TestMoreSlotsGoToWhoStandsBy(t *testing.T) {
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slotLimit(1)}}, func(t *testing.T, s *standby) {
		s.starts("a")
		for i, task := range []string{"b", "c", "d", "e", "f"} {
			s.at(time.Duration(i) * time.Millisecond)
			s.standsBy(task, time.Second)
		}
		s.config(policy.Policy{Limits: []policy.Limit{slotLimit(3)}})
		s.at(5 * time.Millisecond)
		s.standsBy("x", time.Second)
		assert.Equal(t, "b", hear(t, s.called))
		assert.Equal(t, "c", hear(t, s.called))
		s.starts("b")
		s.starts("c")
		s.standsBy("e", time.Second)
		s.config(policy.Policy{Limits: []policy.Limit{slotLimit(5)}})
		s.starts("e")
		assert.Equal(t, "d", hear(t, s.called))
		s.standsBy("x", time.Second)
		s.config(policy.Policy{Limits: []policy.Limit{slotLimit(6)}})
		s.standsBy("x", time.Second)
		assert.Equal(t, "f", hear(t, s.called))
		assert.Empty(t, s.called)
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
		s.at(10*time.Second + time.Microsecond)
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

		c := s.asksBy(throttle.Request{Policy: "api", TaskID: "c"})
		require.NotNil(t, c.Place)
		assert.False(t, c.Place.StandsBy)
		assert.EqualValues(t, 2, c.Place.Position)
		s.at(20*time.Second + time.Microsecond)
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
		s.at(time.Millisecond)
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
