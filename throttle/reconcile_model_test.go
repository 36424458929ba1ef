package throttle_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// theirs is an upstream of the model: a quota in windows, told in whole seconds by a
// clock of its own, and spent by others, too.
type theirs struct {
	limit  int64
	window time.Duration
	ahead  time.Duration // its clock's
	number int64         // the window that `used` counts
	used   int64
}

// spend takes one call at some time after noon, if there is one left.
func (u *theirs) spend(at time.Duration) bool {
	if n := int64(at / u.window); n != u.number {
		u.number, u.used = n, 0
	}
	if u.used == u.limit {
		return false
	}
	u.used++
	return true
}

// flight is a call of the model, from its start through its count at the upstream to
// its response.
type flight struct {
	reservation             *throttle.Reservation
	sent, counted, received time.Duration
	refused, isCounted      bool
	said                    throttle.Reading
	date                    time.Time
}

// count has the upstream count the call, and answer.
func (f *flight) count(u *theirs) {
	f.isCounted, f.refused = true, !u.spend(f.counted)
	ends := time.Duration(u.number+1) * u.window
	now := noon.Add(f.counted + u.ahead)
	f.date = now.Truncate(time.Second)
	f.said = throttle.Reading{
		Limit: u.limit, Remaining: u.limit - u.used, Reset: noon.Add(ends + u.ahead).Sub(f.date),
	}
}

// Law 8, against a model: calls and responses overtake each other, calls and windows
// fall together, others spend the same quota, clocks differ by an hour. A response is
// believed exactly as far as it goes: while others spend nothing, no call is refused
// once one response has come; where they do, no more are refused in a window than
// they took and were in flight. And what is left is used.
func TestReconcileAgainstModel(t *testing.T) {
	t.Parallel()
	eachStory(t, 4, 1, reconcileAgainstModel)
}

func reconcileAgainstModel(t *testing.T, start makeLimiter, seed uint64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 8))
	u := &theirs{
		limit: 5 + random.Int64N(60), window: time.Duration(2+random.IntN(9)) * time.Second,
		ahead: time.Duration(random.IntN(7200)-3600) * time.Second,
	}
	others := seed%2 == 1
	m := newModelRun(start, u, random)
	m.run(5*u.window, others)

	for n, refused := range m.refused {
		if !others {
			require.Zero(t, refused, "seed %d, window %d of %s: limit %d", seed, n, u.window, u.limit)
		}
		require.LessOrEqual(t, refused, m.mostInFlight, "seed %d, window %d", seed, n)
	}
	if !others {
		require.GreaterOrEqual(t, m.passed, 4*u.limit, "seed %d: quota left unused", seed)
	}
}

// modelRun is one history of the model.
type modelRun struct {
	*testLimiter
	upstream     *theirs
	random       *rand.Rand
	flights      []*flight
	refused      map[int64]int // by window
	passed       int64
	mostInFlight int
}

func newModelRun(start makeLimiter, u *theirs, random *rand.Rand) *modelRun {
	// Twice of what the upstream allows is declared.
	limits := []policy.Limit{window("w", 2*u.limit, u.window, policy.AnchorFirst)}
	b := start(limits...)
	b.remake(policy.Policy{Limits: limits, Upstream: &policy.Upstream{}})
	return &modelRun{testLimiter: b, upstream: u, random: random, refused: map[int64]int{}}
}

// run lets as many calls start as may, all the time.
func (m *modelRun) run(length time.Duration, others bool) {
	const step = 40 * time.Millisecond
	for now := time.Duration(0); now < length; now += step {
		m.at(now)
		if others && m.random.IntN(30) == 0 {
			m.upstream.spend(now)
		}
		m.advance(now)
		for range m.random.IntN(4) {
			if len(m.flights) < 20 {
				m.launch(now)
			}
		}
		m.mostInFlight = max(m.mostInFlight, len(m.flights))
	}
}

func (m *modelRun) launch(now time.Duration) {
	r := m.reserve(0)
	if r.Outcome != throttle.Granted {
		return
	}
	// The way there and the way back: mostly short, at times very long.
	way := func() time.Duration {
		if m.random.IntN(20) == 0 {
			return time.Duration(m.random.IntN(1500)) * time.Millisecond
		}
		return time.Duration(m.random.IntN(60)) * time.Millisecond
	}
	f := &flight{reservation: r, sent: now}
	f.counted = now + way()
	f.received = f.counted + way()
	if now < time.Second { // the first response comes before much else
		f.counted, f.received = now, now
	}
	m.flights = append(m.flights, f)
}

// advance has the upstream count what reached it, in order, and responses come back.
func (m *modelRun) advance(now time.Duration) {
	slices.SortFunc(m.flights, func(a, b *flight) int { return int(a.counted - b.counted) })
	for _, f := range m.flights {
		if !f.isCounted && f.counted <= now {
			f.count(m.upstream)
			if f.refused {
				m.refused[m.upstream.number]++
			} else {
				m.passed++
			}
		}
	}
	m.flights = slices.DeleteFunc(m.flights, func(f *flight) bool {
		if !f.isCounted || f.received > now {
			return false
		}
		local := time.Now()
		_, err := throttle.ReconcileAt(m.t.Context(), f.reservation, local, throttle.Observation{
			Sent: local.Add(f.sent - now), Received: local.Add(f.received - now), Date: f.date,
			Quotas: map[string]throttle.Reading{"w": f.said},
		})
		require.NoError(m.t, err)
		return true
	})
}

// Whatever is observed, reconciling it ends, and closes nothing for longer than the
// policy lets it.
func FuzzReconcile(f *testing.F) {
	f.Add(int64(50), int64(0), int64(60), int64(60), false, int64(0), int64(0), false)
	f.Add(int64(0), int64(-1), int64(1)<<62, int64(-5), true, int64(1)<<62, int64(-1), true)
	limiter := newFuzzed(f)
	f.Fuzz(func(t *testing.T, limit, remaining, reset, window int64, refills bool, closes, ago int64, refused bool) {
		r, err := limiter.limiter.Reserve(t.Context(), request(0))
		require.NoError(t, err)
		o := throttle.Observation{
			Sent: time.Now().Add(-time.Duration(ago)), Received: time.Now().Add(-time.Duration(ago) / 2), Refused: refused,
			Quotas: map[string]throttle.Reading{"w": {
				Limit: limit, Remaining: remaining, Reset: time.Duration(reset), Window: time.Duration(window), Refills: refills,
			}},
			Close: map[string]time.Duration{"w": min(time.Duration(closes), time.Hour)},
		}
		if r.Outcome == throttle.Granted {
			_, err = r.Reconcile(t.Context(), o)
		} else {
			_, err = limiter.limiter.Reconcile(t.Context(), request(0), o)
		}
		require.NoError(t, err)
		d, err := limiter.limiter.Peek(t.Context(), request(0))
		require.NoError(t, err)
		require.LessOrEqual(t, d.RetryAfter(), 2*time.Hour)
		limiter.clock.Set(limiter.clock.Now().Add(3 * time.Hour))
	})
}

func newFuzzed(f *testing.F) *testLimiter {
	server, clock := throttletest.EmbeddedAt(f, noon)
	limiter, err := throttle.New(server.Client(), &policy.Config{Policies: []policy.Policy{{
		Name: "api", Upstream: &policy.Upstream{},
		Limits: []policy.Limit{window("w", 100, time.Minute, policy.AnchorClock)},
	}}})
	require.NoError(f, err)
	return &testLimiter{clock: clock, client: server.Client(), limiter: limiter}
}
