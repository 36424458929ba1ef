package throttle_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// toldLimiter is a testLimiter whose policy has one limit of 100 a minute and heeds its upstream.
type toldLimiter struct{ *testLimiter }

func newTold(t *testing.T, u policy.Upstream, limits ...policy.Limit) toldLimiter {
	t.Helper()
	if limits == nil {
		limits = []policy.Limit{window("w", 100, time.Minute, policy.AnchorClock)}
	}
	b := newTestLimiter(t, limits...)
	b.remake(policy.Policy{Limits: limits, Upstream: &u})
	return toldLimiter{b}
}

// start is a call that was let through.
func (b toldLimiter) start(attributes ...string) *throttle.Reservation {
	b.t.Helper()
	r := b.reserve(0, attributes...)
	require.Equal(b.t, throttle.Granted, r.Outcome, "held by %s for %s", r.HeldBy, r.RetryAfter())
	return r
}

// starts lets as many calls through as may pass now, at most `most`.
func (b toldLimiter) starts(most int, attributes ...string) (calls []*throttle.Reservation) {
	b.t.Helper()
	for range most {
		r := b.reserve(0, attributes...)
		if r.Outcome != throttle.Granted {
			break
		}
		calls = append(calls, r)
	}
	return calls
}

// hears ends a call with what its response says of the limit "w", at the time of the
// limiter's clock; the upstream's own clock is an hour ahead of it.
func (b toldLimiter) hears(r *throttle.Reservation, remaining int64, reset time.Duration) throttle.Learned {
	b.t.Helper()
	return b.told(r, throttle.Reading{Limit: 50, Remaining: remaining, Reset: reset, Window: time.Minute})
}

func (b toldLimiter) told(r *throttle.Reservation, reading throttle.Reading) throttle.Learned {
	b.t.Helper()
	heard, err := r.Reconcile(b.t.Context(), throttle.Observation{
		Date: b.clock.Now().Add(time.Hour), Quotas: map[string]throttle.Reading{"w": reading},
	})
	require.NoError(b.t, err)
	return heard.Quotas["w"]
}

// Law 8: the first response that says so closes the window at what is left, less the
// calls in flight; the window after it begins with what was learned.
func TestLearnedLimitIsUsed(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{})
	b.at(10 * time.Second)
	calls := b.starts(5)
	learned := b.hears(calls[0], 49, 50*time.Second)
	assert.Equal(t, throttle.Learned{Limit: 50}, learned)
	assert.Len(t, b.starts(100), 45, "49 left, 4 of them in flight")
	r := b.reserve(0)
	assert.Equal(t, "w/upstream", r.HeldBy)
	assert.Equal(t, 50*time.Second, r.RetryAfter())

	b.at(60*time.Second - time.Microsecond)
	assert.Empty(t, b.starts(1))
	b.at(60 * time.Second)
	assert.Len(t, b.starts(100), 50-49, "the others may be counted in this window")
}

// What is left is exact once nothing is in flight any more, whatever the order of the
// responses.
func TestOutOfOrderResponsesDoNoHarm(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}} {
		b := newTold(t, policy.Upstream{})
		calls := b.starts(4)
		for n, i := range order {
			b.hears(calls[i], 20-int64(i), time.Minute)
			if n == 0 {
				assert.Equal(t, 20-int64(i)-3, b.left(), "less those in flight")
			}
		}
		assert.Equal(t, int64(17), b.left(), "%v", order)
		assert.Len(t, b.starts(100), 17)
	}
}

// left is what the upstream's quota leaves now.
func (b toldLimiter) left() int64 {
	b.t.Helper()
	d, err := b.limiter.Peek(b.t.Context(), request(0))
	require.NoError(b.t, err)
	for _, l := range d.Limits {
		if l.Name == "w/upstream" {
			return l.Remaining
		}
	}
	return -1
}

// Headers only ever tighten within a window; a later window loosens.
func TestOnlyTightens(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{})
	require.Equal(t, int64(-1), b.left(), "nothing is known yet")
	calls := b.starts(8)
	b.hears(calls[0], 10, 30*time.Second)
	b.hears(calls[1], 40, 30*time.Second)
	assert.Equal(t, int64(10-6), b.left(), "more within the window is not believed")
	b.told(calls[2], throttle.Reading{Limit: 500, Remaining: 500, Reset: 31 * time.Second, Window: time.Minute})
	assert.Equal(t, int64(10-5), b.left(), "nor is a second that comes of rounding a new window")
	assert.True(t, b.hears(calls[3], 3, 10*time.Second).Stale, "a window that ended before")
	assert.Equal(t, int64(10-4), b.left())
	assert.False(t, b.hears(calls[4], 40, 90*time.Second).Stale)
	assert.Equal(t, int64(40-3), b.left(), "a later window")
	assert.True(t, b.hears(calls[5], 1, 30*time.Second).Stale, "and now the first one is old")
	assert.Equal(t, int64(40-2), b.left())
}

// The end of a window is told in whole seconds; the earliest bound that any response
// gives counts.
func TestWindowEndsWithTheEarliestBound(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{})
	calls := b.starts(2)
	b.hears(calls[0], 0, 20*time.Second)
	b.at(700 * time.Millisecond)
	b.clock.Set(noon.Add(700 * time.Millisecond))
	_, err := calls[1].Reconcile(t.Context(), throttle.Observation{
		// The upstream's clock is past the second already.
		Date:   noon.Add(time.Hour + time.Second),
		Quotas: map[string]throttle.Reading{"w": {Limit: 50, Reset: 19 * time.Second, Window: time.Minute}},
	})
	require.NoError(t, err)
	assert.Equal(t, 19*time.Second, b.reserve(0).RetryAfter())
}

// After its end we take it that the next window has begun, until a call that was sent
// after that hears otherwise. One that was sent before tells nothing new.
func TestWindowThatGoesOn(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{})
	early := b.start()
	b.hears(b.start(), 0, 10*time.Second)
	b.at(11 * time.Second)
	late := b.start()
	b.hearsOfTheSame(early, 50, 0, 5*time.Second)
	assert.Len(t, b.starts(5), 5)
	b.hearsOfTheSame(late, 40, 20*time.Second, 0)
	r := b.reserve(0)
	assert.Equal(t, throttle.Denied, r.Outcome)
	assert.Equal(t, 20*time.Second, r.RetryAfter())
	b.at(31 * time.Second)
	assert.Equal(t, int64(40-5), b.left(), "and tightens the quota, less those in flight")
}

// hearsOfTheSame is hears for a request that was sent a while ago, of the same window as ever
// by the upstream's clock, of which nothing is left, but with another time left of it.
func (b toldLimiter) hearsOfTheSame(r *throttle.Reservation, limit int64, reset, ago time.Duration) {
	b.t.Helper()
	reading := throttle.Reading{Limit: limit, Reset: max(reset, time.Second), Window: time.Minute}
	now := time.Now()
	_, err := throttle.ReconcileAt(b.t.Context(), r, now, throttle.Observation{
		Sent: now.Add(-ago), Date: noon.Add(time.Hour + 10*time.Second - reading.Reset),
		Quotas: map[string]throttle.Reading{"w": reading},
	})
	require.NoError(b.t, err)
}

// What the process does not know the end of is taken to be counted; what was
// cancelled, not to have been sent; and what nobody ever told of is forgotten.
func TestFlightsEnd(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{})
	calls := b.starts(4)
	b.hears(calls[0], 30, time.Minute)
	require.Equal(t, int64(27), b.left())
	require.NoError(t, calls[1].Cancel(t.Context()))
	assert.Equal(t, int64(28), b.left())
	require.NoError(t, calls[2].Settle(t.Context()))
	require.NoError(t, calls[2].Settle(t.Context()), "once")
	assert.Equal(t, int64(28), b.left())
	require.NoError(t, calls[3].Settle(t.Context()))
	assert.Equal(t, int64(28), b.left())
	require.NoError(t, calls[3].Cancel(t.Context()))
	assert.Equal(t, int64(28), b.left(), "it ended already")

	b.starts(10) // and their process dies
	b.at(11 * time.Minute)
	assert.Equal(t, int64(50), b.left(), "and are forgotten")
	b.at(13 * time.Minute)
	assert.Equal(t, int64(-1), b.left(), "as is everything, after a while")
}

// Each key has a quota of its own.
func TestKeysAreToldApart(t *testing.T) {
	t.Parallel()
	limit := window("w", 100, time.Minute, policy.AnchorClock)
	limit.Per = "user"
	b := newTold(t, policy.Upstream{}, limit)
	b.hears(b.start("user", "ann"), 0, time.Minute)
	assert.Empty(t, b.starts(1, "user", "ann"))
	assert.Len(t, b.starts(3, "user", "bob"), 3)

	ann := request(0, "user", "ann")
	require.NoError(t, b.limiter.FreezeKey(t.Context(), request(0, "user", "bob"), "w", 5*time.Second))
	assert.Equal(t, 5*time.Second, b.reserve(0, "user", "bob").RetryAfter())
	assert.Len(t, b.starts(1, "user", "cid"), 1)
	require.NoError(t, b.limiter.UnfreezeKey(t.Context(), request(0, "user", "bob"), "w"))
	assert.Len(t, b.starts(1, "user", "bob"), 1)
	assert.ErrorContains(t, b.limiter.FreezeKey(t.Context(), ann, "ww", time.Second), `unknown limit "ww"`)
}

// Those who wait for a key to open start one after the other, at the limit's pace.
func TestReopeningMakesNoHerd(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{}, bucket("w", 10, time.Second, 10))
	require.NoError(t, b.limiter.FreezeKey(t.Context(), request(0), "w", 4*time.Second))
	for i := range 5 {
		r := b.reserve(10 * time.Second)
		require.Equal(t, throttle.Granted, r.Outcome)
		assert.Equal(t, 4*time.Second+time.Duration(i)*100*time.Millisecond, r.RetryAfter())
	}
}

// A few tokens can be left for other programs; and what costs more than all passes
// when all is there.
func TestHeadroom(t *testing.T) {
	t.Parallel()
	limit := window("w", 100, time.Minute, policy.AnchorClock)
	limit.Cost = "points"
	b := newTold(t, policy.Upstream{Headroom: 5}, limit)
	b.hears(b.start(), 20, 10*time.Second)
	calls := b.starts(100)
	assert.Len(t, calls, 15)
	for _, r := range calls {
		require.NoError(t, r.Settle(t.Context()))
	}
	b.at(2 * time.Minute)
	calls = b.starts(1, "points", "80")
	require.Len(t, calls, 1, "80 of 50 can only ever be tried")
	assert.Empty(t, b.starts(1))
}

// A quota that comes back bit by bit does so for us, too.
func TestRefillingQuota(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{})
	calls := b.starts(3)
	// 60 per minute, 4 left; two of the calls in flight may not be counted.
	b.told(calls[0], throttle.Reading{Limit: 60, Remaining: 4, Window: time.Minute, Refills: true})
	assert.Len(t, b.starts(100), 2)
	r := b.reserve(0)
	assert.Equal(t, time.Second, r.RetryAfter())
	assert.Equal(t, "w/upstream", r.HeldBy)
	b.at(time.Second)
	b.start()
	// An older response, or one with more left, changes nothing.
	b.told(calls[1], throttle.Reading{Limit: 60, Remaining: 50, Window: time.Minute, Refills: true})
	assert.Equal(t, time.Second, b.reserve(0).RetryAfter())
}

// No response closes anything for longer than the policy lets it, and one that would
// is told.
func TestAbsurdResetsAreIgnored(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{MaxFreeze: 10 * time.Minute})
	learned := b.hears(b.start(), 0, 11*time.Minute)
	assert.True(t, learned.Absurd)
	assert.Len(t, b.starts(1), 1)
	assert.False(t, b.hears(b.start(), 0, 9*time.Minute).Absurd)
	assert.Empty(t, b.starts(1))
}

// Refusals that say nothing cut the rate once per round trip, whoever meets them; it
// comes back to just below the last good one, and never above the declared.
func TestPace(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{}, bucket("w", 100, time.Second, 100))
	refuse := func(r *throttle.Reservation, ago time.Duration) bool {
		heard, err := r.Reconcile(t.Context(), throttle.Observation{Sent: time.Now().Add(-ago), Refused: true})
		require.NoError(t, err)
		return heard.SlowedDown
	}
	perSecond := func() int64 {
		d, err := b.limiter.Peek(t.Context(), request(0))
		require.NoError(t, err)
		for _, l := range d.Limits {
			if l.Name == "w/pace" {
				return l.Remaining
			}
		}
		return 100
	}
	calls := b.starts(5)
	assert.True(t, refuse(calls[0], 0))
	assert.Equal(t, int64(70), perSecond(), "beta is 0.7")
	for _, r := range calls[1:] {
		assert.False(t, refuse(r, time.Second), "they left before the rate was cut")
	}
	assert.Equal(t, int64(70), perSecond())

	// K at 100 a second is cbrt(100 x 0.3 / 0.4).
	k := 4217 * time.Millisecond
	b.at(k / 2)
	assert.InDelta(t, 95, perSecond(), 2, "most of it is back at half of K")
	b.at(2*k - time.Second)
	assert.Equal(t, int64(95), perSecond(), "and stays just below")
	r := b.start()
	assert.Equal(t, "w/pace", b.reserve(0).HeldBy, "one at a time")
	assert.True(t, refuse(r, 0))
	assert.InDelta(t, 66.5, perSecond(), 1, "0.7 of what it was")
	for range 200 {
		b.clock.Set(b.clock.Now().Add(5 * time.Second))
		refuse(b.start(), 0)
	}
	assert.Positive(t, perSecond())
	b.clock.Set(b.clock.Now().Add(time.Hour))
	assert.Equal(t, int64(100), perSecond())
	assert.Len(t, b.starts(200), 100)
}

// The shape of the curve is CUBIC's: at a rate of 10 K is 1.957 s.
func TestPaceCurve(t *testing.T) {
	t.Parallel()
	b := newTold(t, policy.Upstream{}, bucket("w", 1000, 100*time.Second, 10))
	_, err := b.start().Reconcile(t.Context(), throttle.Observation{Refused: true})
	require.NoError(t, err)
	for at, want := range map[time.Duration]float64{ // 10 + 0.4 (t - 1.9574)^3, at most 9.5
		0: 700, 250 * time.Millisecond: 1000 + 40*-4.9771, 500 * time.Millisecond: 1000 + 40*-3.0956, time.Second: 950,
	} {
		b.at(at)
		d, err := b.limiter.Peek(t.Context(), request(0))
		require.NoError(t, err)
		assert.InDelta(t, want, d.Limits[len(d.Limits)-1].Remaining, 2, strconv.Quote(at.String()))
	}
}

// A task that got its slot before does not start into what was closed meanwhile: it
// asks again, and a key that was opened again is open.
func TestWaitingTasksHeedAClosure(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limit := bucket("w", 10, time.Second, 1)
		limit.Per = "user"
		name := throttletest.UniqueName(t)
		limiter, err := throttle.New(server.Client(), &policy.Config{
			Policies: []policy.Policy{{Name: name, Limits: []policy.Limit{limit}, Upstream: &policy.Upstream{}}},
		})
		require.NoError(t, err)
		reserve := func(user string) *throttle.Reservation {
			r, err := limiter.Reserve(t.Context(), throttle.Request{
				Policy: name, Attributes: map[string]string{"user": user}, MaxWait: time.Second,
			})
			require.NoError(t, err)
			return r
		}
		ann := throttle.Request{Policy: name, Attributes: map[string]string{"user": "ann"}}
		reserve("ann")
		reserve("bob")
		first, other := reserve("ann"), reserve("bob")
		require.NoError(t, limiter.FreezeKey(t.Context(), ann, "w", time.Hour))
		require.NoError(t, other.Wait(t.Context()))
		throttled := (*throttle.ThrottledError)(nil)
		require.ErrorAs(t, first.Wait(t.Context()), &throttled)
		assert.Equal(t, "w/upstream", throttled.HeldBy)
		require.NoError(t, limiter.UnfreezeKey(t.Context(), ann, "w"))
		require.NoError(t, reserve("ann").Wait(t.Context()))

		waiting := reserve("bob")
		require.NoError(t, limiter.Freeze(t.Context(), name, time.Hour))
		require.ErrorAs(t, waiting.Wait(t.Context()), &throttled)
		assert.Equal(t, throttle.HeldByFreeze, throttled.HeldBy)
		require.NoError(t, limiter.Unfreeze(t.Context(), name))
		require.NoError(t, reserve("bob").Wait(t.Context()))
	})
}
