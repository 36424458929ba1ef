//go:build prove

package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
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
		s, taken := killWorkers(t, tasks, !testing.Short(), 5, 110, 200, 300, 420)
		arrivals := s.upstream.Arrivals()
		// Before the killed workers' tasks come back, which have waited for asynq.
		return []prove.Figure{
			prove.Took("pause until others go on", longestPause(arrivals[:min(len(arrivals), tasks-max(taken, 6*8))]), 5*time.Second),
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
		s.awaitQueue("called, but for those that were taken", func(q *asynq.QueueInfo) bool {
			return q.Pending == 0 && q.Active+q.Retry <= concurrency && s.called()+concurrency >= tasks
		})
		arrivals := s.upstream.Arrivals()
		since := arrivals[late-1 : min(len(arrivals), tasks-concurrency)] // from the last one before
		soon := 0
		for _, at := range since[1:] {
			if at.Sub(killed) < 5*time.Second {
				soon++
			}
		}
		busy := float64(late-early) * takes.Seconds() / (slots * arrivals[late-1].Sub(arrivals[early-1]).Seconds())
		return []prove.Figure{
			prove.AtLeast("slots busy", 100*busy, 85, "%"),
			prove.Took("pause after a kill, until the slots go on", longestPause(since), 4*time.Second),
			prove.AtLeast("calls in 5 s after a kill", float64(soon), 31, "calls"),
		}
	})
}

// Within a second of its being written, the file's rate is the one that tasks start at.
func TestProvePoliciesFileIsLive(t *testing.T) {
	for name, test := range map[string]struct {
		server      func(testing.TB) *throttletest.Server
		tasks, fast int
	}{
		"redis":    {func(tb testing.TB) *throttletest.Server { return throttletest.Redis(tb) }, 1000, 100},
		"embedded": {throttletest.Embedded, 450, 40},
	} {
		t.Run(name, func(t *testing.T) {
			prove.Figures(t, func(t *testing.T) []prove.Figure { return ratesAreLive(t, test.server(t), test.tasks, test.fast) })
		})
	}
}

func ratesAreLive(t *testing.T, redis *throttletest.Server, tasks, fast int) []prove.Figure {
	const slow = 5
	file := func(rate int) string {
		return "\n    limits:\n      - {name: calls, algorithm: token_bucket, burst: 10, rate: " + strconv.Itoa(rate) + "/s}\n    max_wait: 3s\n"
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
		prove.AtMost("calls at once when the rate was raised", atOnce(int64(fast), raised, broken), most, "calls"),
		prove.AtLeast("calls a second from a second after that on", calls(raised.Add(second), broken)/2, float64(fast)*0.8, "calls"),
		prove.AtLeast("calls in a second under a broken file", calls(broken, lowered), float64(fast)*0.8, "calls"),
		prove.AtMost("calls at once under a broken file", atOnce(int64(fast), broken, lowered), most, "calls"),
		prove.AtMost("calls in the first second of a lowered rate", calls(lowered, lowered.Add(second)), float64(fast)*0.8, "calls"),
		prove.AtMost("calls at once after it", atOnce(slow, lowered.Add(second), raisedAgain), 2+left, "calls"),
		prove.AtMost("calls out of turn", 100*float64(outOfTurn(t, s.upstream))/float64(tasks), 5, "%"),
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
