package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// concurrency is how many tasks each worker process runs or holds at once.
const concurrency = 10

// newUpstreamFleet has workers on n tasks, half of which have no retry to spend.
func newUpstreamFleet(t *testing.T, cfg throttletest.UpstreamConfig, policy string, n, workers int) *testFleet {
	t.Helper()
	cfg.Latency = 5 * time.Millisecond
	s := newTestFleet(t, throttletest.Redis(t), cfg, policy)
	s.enqueue(n, withRetries(0, 1))
	for range workers {
		s.work(concurrency)
	}
	return s
}

// anHour is a quota of so many calls in a window that no test sees the end of.
func anHour(calls int64) throttletest.UpstreamConfig {
	return throttletest.UpstreamConfig{Quota: &throttletest.Quota{Limit: calls, Window: time.Hour, Start: wholeSecond()}}
}

// wholeSecond is where windows begin whose reset can be told in whole seconds.
func wholeSecond() time.Time { return time.Now().Truncate(time.Second) }

// awaitInLine returns when all tasks are, but for those that were called, and checks that
// none is lost or charged.
func (s *testFleet) awaitInLine() {
	s.Helper()
	s.awaitQueue("all others are in line", func(q *asynq.QueueInfo) bool {
		return q.Pending+q.Active == 0 && q.Size > 0 && q.Size == s.enqueued-s.upstream.Accepted()
	})
	s.nothingCharged()
}

// The upstream allows half of what is declared: the first response says so, and no call
// that is sent after it is too many.
func TestUpstreamAllowsHalf(t *testing.T) {
	t.Parallel()
	const quota = 60
	s := newUpstreamFleet(t, anHour(quota),
		`{limits: [{name: calls, algorithm: fixed_window, rate: 120/1h, anchor: first}], max_wait: 5s, upstream: github}`, 0, 3)
	s.enqueue(1, alike)
	s.awaitQueue("the response was heard", func(q *asynq.QueueInfo) bool { return q.ProcessedTotal == 1 })
	s.enqueue(149, alike)
	s.awaitInLine()
	assert.Zero(t, s.upstream.Over())
	assert.LessOrEqual(t, s.upstream.Accepted(), quota)
}

// A 429 with Retry-After in the middle of a run: only calls that are in flight are made
// until then, nothing is lost or charged, and after it all goes on as before.
func TestUpstreamClosesForAWhile(t *testing.T) {
	t.Parallel()
	const closed = 2
	s := newUpstreamFleet(t, throttletest.UpstreamConfig{}, bucket("100/s, burst: 10", "max_wait: 5s, upstream: auto"), 50, 2)
	s.awaitCalls(50)
	s.upstream.FailNext(1, http.StatusTooManyRequests, http.Header{"Retry-After": {fmt.Sprint(closed)}})
	s.enqueue(100, withRetries(0, 1))
	s.awaitEnd()
	assert.Equal(t, s.enqueued+1, s.upstream.Count(), "one met it")
	var until time.Time
	inFlight := 0
	for _, call := range s.upstream.Calls() {
		switch {
		case call.Status == http.StatusTooManyRequests:
			until = call.Arrived.Add(closed * time.Second)
		case call.Arrived.Before(until):
			inFlight++
		}
	}
	assert.Less(t, inFlight, 2*concurrency)
}

// Another program spends a part of the same quota: no more calls are refused than were
// in flight, and none if there is headroom for it.
func TestUpstreamIsShared(t *testing.T) {
	t.Parallel()
	const quota, workers, others = 100, 2, 20
	for headroom, mostOver := range map[int]int{0: workers * concurrency, others: 0} {
		t.Run(fmt.Sprintf("headroom %d", headroom), func(t *testing.T) {
			t.Parallel()
			s := newUpstreamFleet(t, anHour(quota), fmt.Sprintf(
				`{limits: [{name: calls, algorithm: fixed_window, rate: %d/1h, anchor: first}], upstream: {api: github, headroom: %d}}`,
				quota, headroom), 0, workers)
			s.enqueue(quota+50, alike)
			s.awaitCalls(20)
			require.LessOrEqual(t, s.upstream.Spend("", others), others)
			s.awaitInLine()
			assert.LessOrEqual(t, s.upstream.Over(), mostOver)
			assert.LessOrEqual(t, s.upstream.Accepted(), quota-headroom)
		})
	}
}

// The upstream refuses calls and says nothing of it: nothing is lost or charged.
func TestUpstreamIsSilent(t *testing.T) {
	t.Parallel()
	s := newUpstreamFleet(t, throttletest.UpstreamConfig{}, bucket("90/s, burst: 10", "max_wait: 5s, upstream: auto"), 30, 2)
	const refused = 3
	s.upstream.FailNext(refused, http.StatusTooManyRequests, nil)
	s.awaitEnd()
	assert.Equal(t, s.enqueued+refused, s.upstream.Count())
}
