package throttle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Leases are renewed three times each, and more often while Redis does not answer. One is
// lost when Redis says so, or as soon as it may have run out, and not before.
func TestKeeperRenewsLeases(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	const round, try = lease / 3, lease / 12
	for name, test := range map[string]struct {
		isHeld      bool
		err         error
		least, most time.Duration // from the last renewal until it is lost
	}{
		"held as ever":   {isHeld: true},
		"others have it": {least: round * 4 / 5, most: round},
		"nobody tells":   {err: context.DeadlineExceeded, least: lease, most: lease + try},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				renewed, renewals := time.Now(), 0
				k := &keeper{lease: lease, most: 10}
				k.renew = func(context.Context, []*hold) ([]bool, error) {
					if renewals++; renewals > 10 {
						return []bool{test.isHeld}, test.err
					}
					assert.GreaterOrEqual(t, time.Since(renewed), round*4/5)
					assert.LessOrEqual(t, time.Since(renewed), round)
					renewed = time.Now()
					return []bool{true}, nil
				}
				h := &hold{keeper: k, lost: make(chan struct{}), renewed: renewed}
				k.add(h)
				defer k.drop(h)
				select {
				case <-h.lost:
					synctest.Wait()
					assert.GreaterOrEqual(t, time.Since(renewed), test.least)
					assert.LessOrEqual(t, time.Since(renewed), test.most)
				case <-time.After(time.Hour):
					assert.True(t, test.isHeld)
				}
			})
		})
	}
}

// What ends here calls the first in line at once: nobody waits out a pause beside
// a free slot.
func TestWhatEndsHereCallsTheFirstInLine(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Reservation, context.Context) error{
		"release": (*Reservation).Release,
		"cancel":  (*Reservation).Cancel,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := policy.Limit{Name: "slots", Algorithm: policy.Concurrency, Slots: 1, Per: "tenant"}
			l := newLive(t, throttletest.Embedded(t), policies(limit))
			running := l.reserve(Request{Attributes: map[string]string{"tenant": "a"}})
			leases := CallsOf(l.Limiter, "api").leases
			first := leases.line.join(leases.key(running.claim, 0))
			second := leases.line.join(first.key)
			other := leases.line.join(first.key + "b")
			require.NoError(t, end(running, t.Context()))
			assert.Len(t, first.called, 1)
			assert.Empty(t, second.called)
			assert.Empty(t, other.called)
		})
	}
}

func TestLinePassesCallsOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ called, room, passedOn bool }{
		"left room":            {room: true, passedOn: true},
		"called and left":      {called: true, passedOn: true},
		"took the only slot":   {},
		"called and left room": {called: true, room: true, passedOn: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l line
			first, second, third := l.join("k"), l.join("k"), l.join("k")
			if test.called {
				l.call("k")
			}
			third.leave(true) // who was not first has nothing to pass on
			first.leave(test.room)
			assert.Equal(t, test.passedOn, len(second.called) == 1)
			asks, err := second.wait(t.Context(), time.Now().Add(time.Minute), time.Millisecond)
			require.NoError(t, err)
			assert.True(t, asks, "it is the first now and asks from time to time")
			second.leave(false)
			assert.Empty(t, l.places)
		})
	}
}
