package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// The scenarios below are short by themselves; RAMPMETER_UPSTREAM=full gives them
// their full size.
func fullSize() bool { return os.Getenv("RAMPMETER_UPSTREAM") == "full" }

// concurrency is how many tasks each worker process runs or holds at once.
const concurrency = 10

// newUpstreamFleet has workers on n tasks, half of which have no retry to spend.
func newUpstreamFleet(t *testing.T, cfg throttletest.UpstreamConfig, policy string, n, workers int) *testFleet {
	t.Helper()
	s := newTestFleet(t, throttletest.Redis(t), cfg, policy)
	s.enqueue(n, withRetries(0, 1))
	for range workers {
		s.work(concurrency)
	}
	return s
}

// awaitAccepted returns when so many calls were accepted, and did not take longer than
// that.
func (s *testFleet) awaitAccepted(accepted int, most time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), most)
	defer cancel()
	for s.upstream.Accepted() < accepted {
		require.NoError(s, s.upstream.WaitCalls(ctx, s.upstream.Count()+1), "%d accepted, %d refused", s.upstream.Accepted(), s.upstream.Over())
	}
}

// nothingCharged checks that no task failed, was archived or spent a retry.
func (s *testFleet) nothingCharged() {
	s.Helper()
	s.awaitQueue("every task is done, and none failed", 10*time.Second, func(q *asynq.QueueInfo) bool {
		return q.Size == 0 && q.FailedTotal == 0
	})
}

// accepted are the arrivals of the calls that were let through.
func (s *testFleet) accepted() (times []time.Time) {
	for _, call := range s.upstream.Calls() {
		if call.Status == http.StatusOK {
			times = append(times, call.Arrived)
		}
	}
	return times
}

// wholeSecond is where windows begin whose reset can be told in whole seconds.
func wholeSecond() time.Time { return time.Now().Truncate(time.Second) }

// The upstream allows half of what is declared: the first response says so, and from
// then on no call is too many.
func TestUpstreamAllowsHalf(t *testing.T) {
	tasks := 600
	if fullSize() {
		tasks = 1000
	}
	s := newUpstreamFleet(t, throttletest.UpstreamConfig{
		Quota: &throttletest.Quota{Limit: 200, Window: 2 * time.Second, Start: wholeSecond()}, Latency: 5 * time.Millisecond,
	}, `
    limits:
      - {name: calls, algorithm: fixed_window, rate: 400/2s}
    max_wait: 5s
    upstream: github
`, tasks, 3)
	began := time.Now()
	s.awaitAccepted(tasks, time.Minute)
	took := time.Since(began)
	s.nothingCharged()
	calls := s.upstream.Calls()
	told := calls[0].Arrived.Add(5 * time.Millisecond)
	over, overAfter := 0, 0
	for _, call := range calls {
		if call.Over {
			over++
			if call.Arrived.After(told) {
				overAfter++
			}
		}
	}
	t.Logf("%d tasks in %.1f s: %d calls over, %d of them after the first response", tasks, took.Seconds(), over, overAfter)
	assert.Zero(t, overAfter)
	assert.LessOrEqual(t, over, 3*concurrency, "the calls that were in flight")
	assert.Less(t, took, time.Duration(tasks/200+2)*2*time.Second, "and the quota is used")
}

// A 429 with Retry-After in the middle of a run: few calls meet it, nothing is lost or
// charged, and after it all goes on as before.
func TestUpstreamClosesForAWhile(t *testing.T) {
	tasks := 700
	if fullSize() {
		tasks = 1500
	}
	const rate, closed = 100, 4 * time.Second
	s := newUpstreamFleet(t, throttletest.UpstreamConfig{Latency: 5 * time.Millisecond}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 100/s, burst: 10}
    max_wait: 5s
    upstream: auto
`, tasks, 2)
	s.awaitAccepted(tasks/2, time.Minute)
	s.upstream.CloseFor(closed)
	s.awaitAccepted(tasks, time.Minute)
	s.nothingCharged()

	arrivals := s.upstream.Arrivals()
	took := arrivals[len(arrivals)-1].Sub(arrivals[0])
	ideal := time.Duration(tasks)*time.Second/rate + closed
	met := s.upstream.Count() - tasks
	burst := throttletest.MaxBurst(s.accepted(), rate, time.Second)
	t.Logf("%d tasks in %.2f s, ideal %.2f s: %d calls met it, at most %d at once", tasks, took.Seconds(), ideal.Seconds(), met, burst)
	assert.LessOrEqual(t, met, 22)
	assert.Positive(t, met)
	assert.LessOrEqual(t, took, ideal+ideal*12/100)
	assert.LessOrEqual(t, burst, 10+3, "the burst, and what the network may bunch up")
}

// Another program spends a third of the same quota, at random moments.
func TestUpstreamIsShared(t *testing.T) {
	// A machine that is busy with other tests stalls workers, and wastes quota.
	windows, leastUsed, mostRefused := 4, 0.75, 3
	if fullSize() {
		windows, leastUsed, mostRefused = 10, 0.95, 0
	}
	for _, headroom := range []int{0, 20} {
		t.Run(fmt.Sprintf("headroom %d", headroom), func(t *testing.T) {
			const limit, window, workers = 200, 2 * time.Second, 2
			start := wholeSecond()
			s := newUpstreamFleet(t, throttletest.UpstreamConfig{
				Quota: &throttletest.Quota{Limit: limit, Window: window, Start: start}, Latency: 5 * time.Millisecond,
			}, fmt.Sprintf(`
    limits:
      - {name: calls, algorithm: token_bucket, rate: 200/2s, burst: 10}
    max_wait: 5s
    upstream: {api: github, headroom: %d}
`, headroom), (windows+3)*limit, workers)
			require.NoError(t, s.upstream.WaitCalls(t.Context(), 1))
			first := time.Since(start)/window + 1 // the first whole window
			got := spend(t, s.upstream, start, int(first)+windows+1, limit*3/10, window)

			ours, refused, others := 0, map[int]int{}, 0
			late := "" // when in their windows calls were refused
			for _, call := range s.upstream.Calls() {
				n := int(call.Arrived.Sub(start) / window)
				switch {
				case n <= int(first) || n > int(first)+windows:
				case call.Over:
					refused[n]++
					late += fmt.Sprintf(" %d+%s", n, (call.Arrived.Sub(start) % window).Round(time.Millisecond))
				default:
					ours++
				}
			}
			for n := int(first) + 1; n <= int(first)+windows; n++ {
				others += got[n]
				assert.Less(t, refused[n], workers*concurrency, "window %d", n)
				if headroom > 0 {
					assert.LessOrEqual(t, refused[n], mostRefused, "window %d", n)
				}
			}
			// The others may use the headroom; what they do not counts as ours to leave.
			used := float64(ours) / float64(min(windows*(limit-headroom), windows*limit-others))
			t.Logf("headroom %d: %d calls in %d windows beside %d of others, refused%s, %.1f %% of the rest used",
				headroom, ours, windows, others, late, 100*used)
			assert.GreaterOrEqual(t, used, leastUsed)
		})
	}
}

// spend is the other program. It returns how many calls it got in each window, up to
// the one before `until`.
func spend(t *testing.T, upstream *throttletest.Upstream, start time.Time, until, each int, window time.Duration) map[int]int {
	t.Helper()
	got := map[int]int{}
	for {
		// So many calls at random moments come about so far apart.
		wait := time.NewTimer(time.Duration(rand.ExpFloat64() * float64(window) / float64(each)))
		select {
		case <-wait.C:
		case <-t.Context().Done():
			wait.Stop()
			return got
		}
		n := int(time.Since(start) / window)
		if n >= until {
			return got
		}
		got[n] += upstream.Spend("", 1)
	}
}

// The upstream allows a third of what is declared and says nothing of it.
func TestUpstreamIsSilent(t *testing.T) {
	const hidden = 30
	settle, measure := 20*time.Second, 10*time.Second
	mostRefused, leastUsed := 0.03, 0.75
	if fullSize() {
		settle, measure = time.Minute, time.Minute
		mostRefused, leastUsed = 0.01, 0.85
	}
	s := newUpstreamFleet(t, throttletest.UpstreamConfig{
		Quota: &throttletest.Quota{Limit: hidden, Window: time.Second}, Latency: 5 * time.Millisecond, Silent: true,
	}, `
    limits:
      - {name: calls, algorithm: token_bucket, rate: 90/s, burst: 10}
    max_wait: 5s
    upstream: auto
`, int((settle+measure)/time.Second+5)*hidden, 2)
	require.NoError(t, s.upstream.WaitCalls(t.Context(), 1))
	began := s.upstream.Calls()[0].Arrived
	ctx, cancel := context.WithDeadline(t.Context(), began.Add(settle+measure))
	defer cancel()
	<-ctx.Done()

	calls, over, all := 0, 0, 0
	for _, call := range s.upstream.Calls() {
		switch at := call.Arrived.Sub(began); {
		case at < settle && call.Over:
			all++
		case at < settle || at > settle+measure:
		case call.Over:
			over++
		default:
			calls++
		}
	}
	used, refused := float64(calls)/(hidden*measure.Seconds()), float64(over)/float64(calls+over)
	t.Logf("%d refused in the first %s; after that %.2f %% refused and %.1f %% of the hidden limit used", all, settle, 100*refused, 100*used)
	assert.LessOrEqual(t, refused, mostRefused)
	assert.GreaterOrEqual(t, used, leastUsed)
}
