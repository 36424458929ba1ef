//go:build prove

package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// short is the first when -short asks for that, and otherwise the full size.
func short[T any](small, full T) T {
	if testing.Short() {
		return small
	}
	return full
}

func TestProveTwoProcessesShareAQuota(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		arrivals := shareAQuota(t, short(1500, 9000)).upstream.Arrivals()
		return []prove.Figure{
			// 3 % of a second's rate is the network's.
			prove.AtMost("calls at once, of a burst of 30", float64(throttletest.MaxBurst(arrivals, 300, time.Second)), 30+9, "calls"),
			prove.AtLeast("quota that two workers use", 100*throttletest.Used(arrivals, 30, 300, time.Second), 98, "%"),
		}
	})
}

// In its full size all tasks are called that asynq brings back.
func TestProveKilledWorkersLoseNothing(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		const tasks = 800
		s, taken := killWorkers(t, tasks, 5, 110, 200, 300, 420)
		arrivals := s.upstream.Arrivals()
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
		defer cancel()
		for n := len(arrivals); s.called() < short(0, tasks); n = s.upstream.Count() {
			require.NoError(t, s.upstream.WaitCalls(ctx, n+1))
		}
		s.noneLost()
		return []prove.Figure{
			prove.Took("pause until others go on", longestPause(arrivals[:min(len(arrivals), tasks-taken)]), 5*time.Second),
			prove.AtMost("calls at once, of a burst of 1", float64(throttletest.MaxBurst(arrivals, 100, time.Second)), 1+9, "calls"),
		}
	})
}

func TestProveRedisOutage(t *testing.T) {
	prove.Figures(t, func(t *testing.T) (figures []prove.Figure) {
		for name := range outages {
			figures = append(figures, prove.Took("first call after a Redis that was "+name, outage(t, name, 600), 5*time.Second))
		}
		return figures
	})
}

// Hardly a slot is empty while tasks are in line. When a worker is killed, with all that
// calls and stands by there, the other goes on within seconds, with the slots of those
// who called as soon as their leases have run out.
func TestProveSlots(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		const slots, tasks, concurrency, takes = 6, 500, 16, 150 * time.Millisecond
		const early, late = 60, 300 // until all are parked, and when one is killed
		s := slotsFleet(t, slots, 2*time.Second, takes)
		s.enqueue(tasks, ofTenants(1))
		first := s.work(concurrency)
		s.work(concurrency)
		s.awaitCalls(late)
		require.NoError(t, first.Process.Kill())
		killed := time.Now()
		s.awaitAllBut(concurrency)
		arrivals := s.upstream.Arrivals()
		since := arrivals[late-1 : min(len(arrivals), tasks-concurrency)] // from the last one before
		busy := float64(late-early) * takes.Seconds() / (slots * arrivals[late-1].Sub(arrivals[early-1]).Seconds())
		return []prove.Figure{
			prove.AtLeast("slots busy", 100*busy, 85, "%"),
			prove.Took("pause after a kill, until the slots go on", longestPause(since), 4*time.Second),
			prove.Took("30 calls after a kill", since[31].Sub(killed), 5*time.Second),
		}
	})
}

// Within a second of its being written, the file's rate is the one that tasks start at.
func TestProvePoliciesFileIsLive(t *testing.T) {
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		prove.Figures(t, func(t *testing.T) []prove.Figure {
			require.NoError(t, redis.Client().FlushAll(t.Context()).Err())
			return ratesAreLive(t, redis)
		})
	})
}

func ratesAreLive(t *testing.T, redis *throttletest.Server) []prove.Figure {
	const tasks, fast, slow = 1000, 100, 5
	file := func(rate int) string {
		return bucket(fmt.Sprintf("%d/s, burst: 10", rate), "max_wait: 3s")
	}
	s := newTestFleet(t, redis, throttletest.UpstreamConfig{}, file(slow))
	s.enqueue(tasks, alike)
	for range 2 {
		s.work(20)
	}
	s.awaitQueue("all are in line", func(q *asynq.QueueInfo) bool { return q.Pending == 0 && q.Retry > tasks/2 })
	change := func(after time.Duration, content string) time.Time {
		<-time.After(after)
		return replaceFile(t, s.policies, content)
	}
	raised := change(2*time.Second, policies(file(fast)))
	broken := change(3*time.Second, "policies: {api: {limits: none}}")
	lowered := change(time.Second, policies(file(slow)))
	raisedAgain := change(4*time.Second, policies(file(fast)))
	s.awaitEnd()

	arrivals := s.upstream.Arrivals()
	between := func(from, to time.Time) []time.Time {
		first := slices.IndexFunc(arrivals, func(at time.Time) bool { return at.After(from) })
		end := slices.IndexFunc(arrivals, func(at time.Time) bool { return !at.Before(to) })
		return arrivals[first:end]
	}
	calls := func(from, to time.Time) float64 { return float64(len(between(from, to))) }
	atOnce := func(rate int64, from, to time.Time) float64 {
		return float64(throttletest.MaxBurst(between(from, to), rate, time.Second))
	}
	// What a pause of the machine leaves over may come at once after it, and nothing else.
	left := math.Ceil(slow * longestPause(between(lowered, raisedAgain)).Seconds())
	most, second := 10+3.0, time.Second // at once, and what the network bunches up
	return []prove.Figure{
		prove.AtMost("calls at once at first, of a burst of 10", atOnce(slow, arrivals[0].Add(-second), raised), 10+2, "calls"),
		prove.AtMost("calls at once when the rate was raised", atOnce(fast, raised, broken), most, "calls"),
		prove.AtLeast("calls a second from a second after that on", calls(raised.Add(second), broken)/2, fast*0.8, "calls"),
		prove.AtLeast("calls in a second under a broken file", calls(broken, lowered), fast*0.8, "calls"),
		prove.AtMost("calls at once under a broken file", atOnce(fast, broken, lowered), most, "calls"),
		prove.AtMost("calls in the first second of a lowered rate", calls(lowered, lowered.Add(second)), fast*0.8, "calls"),
		prove.AtMost("calls at once after it", atOnce(slow, lowered.Add(second), raisedAgain), 2+left, "calls"),
		prove.AtMost("calls out of turn", 100*float64(outOfTurn(t, s.upstream))/tasks, 5, "%"),
	}
}

// outOfTurn is how many calls came further from their place in the order of being
// enqueued than the workers hold at once.
func outOfTurn(t *testing.T, upstream *throttletest.Upstream) (n int) {
	t.Helper()
	for place, call := range upstream.Calls() {
		number, err := strconv.Atoi(call.URL[strings.LastIndexByte(call.URL, '/')+1:])
		require.NoError(t, err)
		if number < place-40 || number > place+40 {
			n++
		}
	}
	return n
}

// longestPause is the longest time between two calls, one after the other.
func longestPause(arrivals []time.Time) (longest time.Duration) {
	for i := 1; i < len(arrivals); i++ {
		longest = max(longest, arrivals[i].Sub(arrivals[i-1]))
	}
	return longest
}

// The upstream allows half of what is declared: calls are over only until its first
// response is heard, and the quota is used.
func TestProveUpstreamAllowsHalf(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		tasks := short(600, 1000)
		s := newUpstreamFleet(t, throttletest.UpstreamConfig{
			Quota: &throttletest.Quota{Limit: 200, Window: 2 * time.Second, Start: wholeSecond()},
		}, `{limits: [{name: calls, algorithm: fixed_window, rate: 400/2s}], max_wait: 5s, upstream: github}`, tasks, 3)
		began := time.Now()
		s.awaitEnd()
		arrivals := s.upstream.Arrivals()
		return []prove.Figure{
			prove.AtMost("calls over half of what is declared", float64(s.upstream.Over()), 3*concurrency, "calls"),
			prove.Took("time for all tasks", arrivals[len(arrivals)-1].Sub(began), time.Duration(tasks/200+2)*2*time.Second),
		}
	})
}

// A 429 with Retry-After in the middle of a run: few calls meet it, and after it all goes
// on as before.
func TestProveUpstreamClosesForAWhile(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		const rate, closed = 100, 4 * time.Second
		tasks := short(700, 1500)
		s := newUpstreamFleet(t, throttletest.UpstreamConfig{}, bucket("100/s, burst: 10", "max_wait: 5s, upstream: auto"), tasks, 2)
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
			prove.AtMost("calls at once, of a burst of 10", float64(throttletest.MaxBurst(arrivals, rate, time.Second)), 10+3, "calls"),
		}
	})
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
	}, bucket("200/2s, burst: 10", fmt.Sprintf("max_wait: 5s, upstream: {api: github, headroom: %d}", headroom)),
		(windows+3)*limit, workers)
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
		prove.AtMost(fmt.Sprint("calls refused in a window, with headroom ", headroom), float64(mostRefused), float64(most), "calls"),
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
		settle, measure := short(20*time.Second, time.Minute), short(10*time.Second, time.Minute)
		s := newUpstreamFleet(t, throttletest.UpstreamConfig{
			Quota: &throttletest.Quota{Limit: hidden, Window: time.Second}, Silent: true,
		}, bucket("90/s, burst: 10", "max_wait: 5s, upstream: auto"), int((settle+measure)/time.Second+5)*hidden, 2)
		s.awaitCalls(1)
		began := s.upstream.Calls()[0].Arrived
		<-time.After(time.Until(began.Add(settle + measure)))
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
