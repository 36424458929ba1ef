package throttle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func perHour(count int64) policy.Limit {
	return policy.Limit{Name: "calls", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: count, Period: time.Hour}}
}

func perSecond(count int64) policy.Limit {
	return policy.Limit{Name: "calls", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: count, Period: time.Second}}
}

func atOnce(slots int64, lease time.Duration) policy.Limit {
	return policy.Limit{Name: "at-once", Algorithm: policy.Concurrency, Slots: slots, Lease: lease}
}

// policies is a Config with the policy "api".
func policies(limits ...policy.Limit) *policy.Config {
	return &policy.Config{Policies: []policy.Policy{{Name: "api", Limits: limits}}}
}

// live is a Limiter that is updated.
type live struct {
	*Limiter
	t *testing.T
}

func newLive(t *testing.T, server *throttletest.Server, config *policy.Config) live {
	t.Helper()
	limiter, err := New(server.Client(), config)
	require.NoError(t, err)
	return live{limiter, t}
}

func (l live) update(limits ...policy.Limit) {
	l.t.Helper()
	require.NoError(l.t, l.Update(policies(limits...)))
}

func (l live) reserve(request Request) *Reservation {
	l.t.Helper()
	request.Policy = "api"
	r, err := l.Reserve(l.t.Context(), request)
	require.NoError(l.t, err)
	return r
}

// remaining is what is left of each limit, by its name.
func (l live) remaining() map[string]int64 {
	l.t.Helper()
	d, err := l.Peek(l.t.Context(), Request{Policy: "api"})
	require.NoError(l.t, err)
	left := map[string]int64{}
	for _, status := range d.Limits {
		left[status.Name] = status.Remaining
	}
	return left
}

func TestUpdateThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	before := policies(perHour(10))
	l := newLive(t, throttletest.Embedded(t), before)
	updated := l.Updated()
	window := perHour(10)
	window.Algorithm = policy.FixedWindow
	for name, test := range map[string]struct {
		config *policy.Config
		path   string
	}{
		"nothing":           {nil, "policies"},
		"no policy":         {&policy.Config{}, "policies"},
		"a bad number":      {policies(perHour(-1)), "policies.api.limits[0].rate"},
		"another algorithm": {policies(atOnce(1, 0), window), "policies.api.limits[1].algorithm"},
	} {
		err := l.Update(test.config)
		var invalid *policy.ConfigError
		require.ErrorAs(t, err, &invalid, name)
		assert.Equal(t, test.path, invalid.Problems[0].Path, name)
		assert.Same(t, before, l.Config(), name)
		select {
		case <-updated:
			assert.Fail(t, "told of an update that was none", name)
		default:
		}
	}
	l.update(perHour(20))
	<-updated
}

// Law 9 for one limiter: the next call goes by the new numbers, of which the same share
// is used; what has not changed is not disturbed.
func TestUpdateIsInForceAtOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		other := policy.Policy{Name: "other", Limits: []policy.Limit{atOnce(1, 0)}}
		config := func(calls int64) *policy.Config {
			c := policies(perHour(calls))
			c.Policies = append(c.Policies, other)
			return c
		}
		l := newLive(t, server, config(10))
		for range 4 {
			require.Equal(t, Granted, l.reserve(Request{}).Outcome)
		}
		require.Equal(t, int64(6), l.remaining()["calls"])
		api, others := CallsOf(l.Limiter, "api"), CallsOf(l.Limiter, "other")

		require.NoError(t, l.Update(config(20)))
		assert.Equal(t, int64(12), l.remaining()["calls"], "no old debt, no free refill")
		assert.NotSame(t, api, CallsOf(l.Limiter, "api"))
		assert.Same(t, others, CallsOf(l.Limiter, "other"))
		require.NoError(t, l.Update(config(5)))
		assert.Equal(t, int64(3), l.remaining()["calls"])
	})
}

// A reservation is given back, adjusted, held and released rightly whatever became of
// its policy.
func TestReservationsOutliveUpdates(t *testing.T) {
	t.Parallel()
	costly := perHour(100)
	costly.Cost = "tokens"
	daily := policy.Limit{Name: "daily", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 50, Period: 24 * time.Hour}}
	for name, after := range map[string][]policy.Limit{
		"the same":           {costly, atOnce(2, 0)},
		"other slots":        {costly, atOnce(3, time.Minute)},
		"a limit more":       {daily, costly, atOnce(2, 0)},
		"in another order":   {atOnce(2, 0), costly},
		"two limits for one": {atOnce(2, 0), costly, daily, {Name: "more", Algorithm: policy.Concurrency, Slots: 9}},
		"twice what it was":  {{Name: "calls", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 200, Period: time.Hour}, Cost: "tokens"}, atOnce(4, 0)},
		"counted by another": {costly, {Name: "at-once", Algorithm: policy.Concurrency, Slots: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				l := newLive(t, server, policies(costly, atOnce(2, 0)))
				tokens := map[string]string{"tokens": "40"}
				cancelled := l.reserve(Request{TaskID: "cancelled", Attributes: tokens})
				l.update(after...)
				full := CallsOf(l.Limiter, "api").policy.Limit("calls").Capacity()
				slots := CallsOf(l.Limiter, "api").policy.Limit("at-once").Slots
				assert.Equal(t, full*60/100, l.remaining()["calls"])
				assert.Equal(t, slots-1, l.remaining()["at-once"])
				require.NoError(t, cancelled.Cancel(t.Context()))
				assert.Equal(t, slots, l.remaining()["at-once"])

				l.update(costly, atOnce(2, 0))
				ran := l.reserve(Request{TaskID: "ran", Attributes: tokens})
				before := l.remaining()["calls"]
				ran.Hold(t.Context())
				l.update(after...)
				require.NoError(t, ran.hold.keeper.renewAll(), "its lease is renewed")
				require.NoError(t, ran.Adjust(t.Context(), map[string]string{"tokens": "50"}))
				assert.Equal(t, (before-10)*full/100, l.remaining()["calls"], "its numbers are those it was made by")
				require.NoError(t, ran.Release(t.Context()))
				assert.Equal(t, slots, l.remaining()["at-once"])
				assert.Equal(t, (before-10)*full/100, l.remaining()["calls"], "what was used stays used")
				select {
				case <-ran.Lost():
					assert.Fail(t, "a lease was lost")
				default:
				}
			})
		})
	}
}

func TestPoliciesComeAndGo(t *testing.T) {
	t.Parallel()
	l := newLive(t, throttletest.Embedded(t), policies(atOnce(1, 0)))
	running := l.reserve(Request{TaskID: "1"})
	running.Hold(t.Context())
	waiting := l.reserve(Request{TaskID: "2"})
	require.NoError(t, l.Update(&policy.Config{
		Policies: []policy.Policy{{Name: "new", Limits: []policy.Limit{perHour(1)}}},
		Routes:   []policy.Route{{Task: "*", Policy: "new"}},
	}))
	_, err := l.Reserve(t.Context(), Request{Policy: "api"})
	require.ErrorIs(t, err, ErrUnknownPolicy)
	r, err := l.Reserve(t.Context(), Request{Policy: "new"})
	require.NoError(t, err)
	assert.Equal(t, Granted, r.Outcome)
	assert.Equal(t, "new", l.Config().PolicyFor("any").Name)

	require.NoError(t, running.Wait(t.Context()), "who has a slot keeps it")
	require.ErrorAs(t, waiting.Wait(t.Context()), new(*ThrottledError))
	assert.Equal(t, "api", running.Terms().Name)
	require.NoError(t, running.Release(t.Context()))

	l.update(atOnce(1, 0))
	assert.Equal(t, int64(1), l.remaining()["at-once"], "it was released")
}

// Who waits for a slot asks for another one as soon as the numbers are others, and goes
// back to its place in line if it has to wait for longer now.
func TestUpdateReachesThoseWhoWait(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		window := func(count int64, period time.Duration) policy.Limit {
			return policy.Limit{Name: "calls", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: count, Period: period}}
		}
		l := newLive(t, server, policies(window(1, time.Hour)))
		require.Equal(t, Granted, l.reserve(Request{}).Outcome)
		waiting := l.reserve(Request{MaxWait: 2 * time.Hour})
		require.Equal(t, Granted, waiting.Outcome)
		waited := make(chan error, 1)
		go func() { waited <- waiting.Wait(t.Context()) }()
		l.update(window(2, time.Hour))
		select {
		case err := <-waited:
			require.NoError(t, err)
		case <-time.After(Patience):
			require.Fail(t, "still waiting")
		}

		parking := l.reserve(Request{TaskID: "a", Park: true, MaxWait: 2 * time.Hour})
		require.Equal(t, Granted, parking.Outcome)
		later := l.reserve(Request{TaskID: "b", Park: true})
		require.NotNil(t, later.Place)
		parking.claim.request.MaxWait = 0 // its worker has no more time
		go func() { waited <- parking.Wait(t.Context()) }()
		l.update(window(1, time.Hour))
		throttled := (*ThrottledError)(nil)
		require.ErrorAs(t, <-waited, &throttled)
		require.NotNil(t, throttled.Place)
		assert.Equal(t, int64(1), throttled.Place.Position, "before the one that came later")
	})
}

// What is given back is given back by the numbers that it was taken by. Others that were
// asked meanwhile have but the share that was used, and keep it.
func TestGivenBackByTheNumbersItWasTakenBy(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		hourly := func(count int64) policy.Limit {
			return policy.Limit{Name: "hourly", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: count, Period: 24 * time.Hour}}
		}
		l := newLive(t, server, policies(perHour(10), hourly(100), atOnce(3, 0)))
		first, second := l.reserve(Request{TaskID: "1"}), l.reserve(Request{TaskID: "2"})
		l.update(perHour(10), hourly(10), atOnce(3, 0))
		require.NoError(t, second.Cancel(t.Context()))
		assert.Equal(t, map[string]int64{"calls": 9, "hourly": 9, "at-once": 2}, l.remaining())
		require.Equal(t, Granted, l.reserve(Request{TaskID: "3"}).Outcome)
		require.NoError(t, first.Cancel(t.Context()))
		assert.Equal(t, map[string]int64{"calls": 8, "hourly": 8, "at-once": 2}, l.remaining())
	})
}

// Whatever is done at the same time, nobody is disturbed; for the race detector.
func TestUpdateAmongOthers(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limits := [][]policy.Limit{
			{perHour(1_000_000), atOnce(5, 0)},
			{perHour(2_000_000), atOnce(8, time.Minute)},
			{atOnce(3, 0), perHour(1_000_000), {Name: "more", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: 5000, Period: time.Second}}},
		}
		l := newLive(t, server, policies(limits[0]...))
		ctx, stop := context.WithCancel(t.Context())
		var background, callers sync.WaitGroup
		background.Go(func() { line.Signals(ctx, l, line.Listener{Policy: func(string) {}, Task: func(string, line.Slot) {}}) })
		background.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				assert.NoError(t, l.Update(policies(limits[i%len(limits)]...)))
				_ = l.Line("api").Review(ctx)
			}
		})
		for caller := range 8 {
			callers.Go(func() {
				for i := range 15 {
					r, err := l.Reserve(ctx, Request{Policy: "api", TaskID: fmt.Sprint(caller, "/", i), MaxWait: time.Second})
					if !assert.NoError(t, err) {
						return
					}
					if err := r.Wait(ctx); errors.As(err, new(*ThrottledError)) {
						continue
					}
					assert.NotEmpty(t, r.Terms().Limits)
					r.Hold(ctx)
					if i%2 == 0 {
						assert.NoError(t, r.Release(ctx))
					} else {
						assert.NoError(t, r.Cancel(ctx))
					}
				}
			})
		}
		callers.Wait()
		stop()
		background.Wait()
		d, err := l.Peek(t.Context(), Request{Policy: "api"})
		require.NoError(t, err)
		for _, status := range d.Limits {
			if status.Name == "at-once" {
				assert.Equal(t, status.Limit, status.Remaining, "all slots are free again")
			}
		}
	})
}

// Slots of a slower rate put nobody off: those who wait for them give them back and ask for
// nearer ones, in their order, and newcomers do not wait until they have passed. Slots that
// are kept count as tokens of the new rate, and the bucket is not filled again. Redis's clock
// stands still.
func TestRaisedRateLeavesNoOldDebt(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const slow, fast, all = 2, 50, 20
		now := time.Unix(1_800_000_000, 0)
		require.NoError(t, server.Client().Set(t.Context(), "clock", now.UnixMicro(), 0).Err())
		processes := []live{newLive(t, server, policies(perSecond(slow))), newLive(t, server, policies(perSecond(slow)))}
		var waiting []*Reservation
		for i := range all {
			process := processes[i%len(processes)]
			RunByClockKey(process.Limiter, "clock")
			r := process.reserve(Request{MaxWait: time.Minute})
			assert.Equal(t, time.Duration(max(0, i+1-slow))*time.Second/slow, r.RetryAfter())
			if r.RetryAfter() > 0 {
				waiting = append(waiting, r)
			}
		}
		newcomerWaits := func(tokens int) {
			t.Helper()
			d, err := processes[0].Peek(t.Context(), Request{Policy: "api"})
			require.NoError(t, err)
			assert.Equal(t, time.Duration(tokens)*time.Second/fast, d.RetryAfter())
		}
		for _, process := range processes {
			require.NoError(t, process.Update(policies(perSecond(fast))))
			RunByClockKey(process.Limiter, "clock")
		}
		newcomerWaits(len(waiting) + 1)
		for _, r := range waiting { // as Wait does
			require.NoError(t, r.Cancel(t.Context()))
		}
		for i, r := range waiting {
			nearer, err := r.again(t.Context())
			require.NoError(t, err)
			assert.Equal(t, time.Duration(1+i)*time.Second/fast, nearer.RetryAfter())
		}
		newcomerWaits(len(waiting) + 1)
	})
}
