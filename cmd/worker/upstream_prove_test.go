//go:build prove

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// The upstream allows half of what is declared: calls are over only until its first
// response is heard, and the quota is used.
func TestProveUpstreamAllowsHalf(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		tasks := short(600, 1000)
		s := newUpstreamFleet(t, throttletest.UpstreamConfig{
			Quota: &throttletest.Quota{Limit: 200, Window: 2 * time.Second, Start: wholeSecond()},
		}, `
    limits:
      - {name: calls, algorithm: fixed_window, rate: 400/2s}
    max_wait: 5s
    upstream: github
`, tasks, 3)
		began := time.Now()
		s.awaitEnd()
		calls := s.upstream.Calls()
		overAfter := 0
		for _, call := range calls {
			if call.Over && call.Arrived.After(calls[0].Arrived.Add(5*time.Millisecond)) {
				overAfter++
			}
		}
		return []prove.Figure{
			prove.AtMost("calls over half of what is declared", float64(s.upstream.Over()), 3*concurrency, "calls"),
			prove.AtMost("calls over after the first response", float64(overAfter), 0, "calls"),
			prove.Took("time for all tasks", calls[len(calls)-1].Arrived.Sub(began), time.Duration(tasks/200+2)*2*time.Second),
		}
	})
}

// A 429 with Retry-After in the middle of a run: few calls meet it, and after it all goes
// on as before.
func TestProveUpstreamClosesForAWhile(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		const rate, closed = 100, 4 * time.Second
		tasks := short(700, 1500)
		s := newUpstreamFleet(t, throttletest.UpstreamConfig{}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 100/s, burst: 10}
    max_wait: 5s
    upstream: auto
`, tasks, 2)
		s.awaitCalls(tasks / 2)
		s.upstream.CloseFor(closed)
		s.awaitEnd()
		arrivals := s.upstream.Arrivals()
		met := s.upstream.Count() - tasks
		assert.LessOrEqual(t, met, 2*concurrency, "those in flight")
		return []prove.Figure{
			prove.AtLeast("calls that meet a closed upstream", float64(met), 1, "calls"),
			prove.Took("time for all tasks", arrivals[len(arrivals)-1].Sub(arrivals[0]),
				(time.Duration(tasks)*time.Second/rate+closed)*112/100),
			prove.AtMost("calls at once, of a burst of 10", float64(throttletest.MaxBurst(s.accepted(), rate, time.Second)), 10+3, "calls"),
		}
	})
}

// accepted are the arrivals of the calls that were let through.
func (s *testFleet) accepted() (times []time.Time) {
	for _, call := range s.upstream.Calls() {
		if call.Status == 200 {
			times = append(times, call.Arrived)
		}
	}
	return times
}

// Another program spends a third of the same quota, at random moments.
func TestProveUpstreamIsShared(t *testing.T) {
	for _, headroom := range []int{0, 20} {
		t.Run(fmt.Sprintf("headroom %d", headroom), func(t *testing.T) {
			prove.Figures(t, func(t *testing.T) []prove.Figure { return sharedWindows(t, headroom) })
		})
	}
}

func sharedWindows(t *testing.T, headroom int) []prove.Figure {
	const limit, window, workers = 200, 2 * time.Second, 2
	windows, start := short(4, 10), wholeSecond()
	s := newUpstreamFleet(t, throttletest.UpstreamConfig{
		Quota: &throttletest.Quota{Limit: limit, Window: window, Start: start},
	}, fmt.Sprintf(`
    limits:
      - {name: calls, algorithm: token_bucket, rate: 200/2s, burst: 10}
    max_wait: 5s
    upstream: {api: github, headroom: %d}
`, headroom), (windows+3)*limit, workers)
	s.awaitCalls(1)
	first := int(time.Since(start)/window) + 1 // the first whole window
	got := spend(t, s.upstream, start, first+windows+1, limit*3/10, window)

	ours, refused, others, mostRefused := 0, map[int]int{}, 0, 0
	for _, call := range s.upstream.Calls() {
		switch n := int(call.Arrived.Sub(start) / window); {
		case n <= first || n > first+windows:
		case call.Over:
			refused[n]++
			mostRefused = max(mostRefused, refused[n])
		default:
			ours++
		}
	}
	for n := first + 1; n <= first+windows; n++ {
		others += got[n]
	}
	// The others may use the headroom; what they do not counts as ours to leave.
	used := float64(ours) / float64(min(windows*(limit-headroom), windows*limit-others))
	most, least := workers*concurrency-1, short(75.0, 95)
	if headroom > 0 {
		most = short(3, 0)
	}
	return []prove.Figure{
		prove.AtMost(fmt.Sprintf("calls refused in a window, with a headroom of %d", headroom), float64(mostRefused), float64(most), "calls"),
		prove.AtLeast("use of what others leave of a quota", 100*used, least, "%"),
	}
}

// spend is the other program. It returns how many calls it got in each window, up to
// the one before `until`.
func spend(t *testing.T, upstream *throttletest.Upstream, start time.Time, until, each int, window time.Duration) map[int]int {
	t.Helper()
	got := map[int]int{}
	for {
		// So many calls at random moments come about so far apart.
		<-time.After(time.Duration(rand.ExpFloat64() * float64(window) / float64(each)))
		n := int(time.Since(start) / window)
		if n >= until {
			return got
		}
		got[n] += upstream.Spend("", 1)
	}
}

// The upstream allows a third of what is declared and says nothing of it.
func TestProveUpstreamIsSilent(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		const hidden = 30
		settle, measure := short[time.Duration](20, 60)*time.Second, short[time.Duration](10, 60)*time.Second
		s := newUpstreamFleet(t, throttletest.UpstreamConfig{
			Quota: &throttletest.Quota{Limit: hidden, Window: time.Second}, Silent: true,
		}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 90/s, burst: 10}
    max_wait: 5s
    upstream: auto
`, int((settle+measure)/time.Second+5)*hidden, 2)
		s.awaitCalls(1)
		began := s.upstream.Calls()[0].Arrived
		ctx, cancel := context.WithDeadline(t.Context(), began.Add(settle+measure))
		defer cancel()
		<-ctx.Done()

		calls, over := 0, 0
		for _, call := range s.upstream.Calls() {
			switch at := call.Arrived.Sub(began); {
			case at < settle || at > settle+measure:
			case call.Over:
				over++
			default:
				calls++
			}
		}
		require.Positive(t, calls)
		return []prove.Figure{
			prove.AtMost("calls refused by a silent upstream", 100*float64(over)/float64(calls+over), short(3.0, 1), "%"),
			prove.AtLeast("use of a hidden limit", 100*float64(calls)/(hidden*measure.Seconds()), short(75.0, 85), "%"),
		}
	})
}
