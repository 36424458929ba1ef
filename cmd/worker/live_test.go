package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// livePolicy is a policy of 10 at once and so many a second.
func livePolicy(rate int) string {
	return fmt.Sprintf(`
    limits:
      - {name: calls, algorithm: token_bucket, rate: %d/s, burst: 10}
    max_wait: 3s
`, rate)
}

// replaceFile puts a file in the place of another, as editors and Kubernetes do.
func replaceFile(t *testing.T, path, content string) (at time.Time) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next")
	require.NoError(t, os.WriteFile(next, []byte(content), 0o600))
	at = time.Now()
	require.NoError(t, os.Rename(next, path))
	return at
}

// Law 9, in two processes with a parked backlog: within a second of its being written,
// the file's rate is the one that tasks start at, and no more than that; a file that can
// not be used changes nothing; and all tasks run once, in order, at no charge.
func TestPoliciesFileIsLive(t *testing.T) {
	for name, test := range map[string]struct {
		server      func(testing.TB) *throttletest.Server
		tasks, fast int
	}{
		"redis":    {func(tb testing.TB) *throttletest.Server { return throttletest.Redis(tb) }, 1000, 100},
		"embedded": {throttletest.Embedded, 450, 40}, // which is slow when it is watched for races
	} {
		// Not at the same time: it measures.
		t.Run(name, func(t *testing.T) { limitsAreLive(t, test.server(t), test.tasks, test.fast) })
	}
}

func limitsAreLive(t *testing.T, redis *throttletest.Server, tasks, fast int) {
	const slow, most = 5, 10 + 3 // at once, and what the network bunches up
	s := newTestFleet(t, redis, throttletest.UpstreamConfig{}, livePolicy(slow))
	s.enqueue(tasks, alike)
	for range 2 {
		s.work(20, "-log-level", "fatal")
	}
	s.awaitQueue("all are in line", time.Minute, func(q *asynq.QueueInfo) bool {
		return q.Pending == 0 && q.Retry > tasks/2
	})
	wait := func(d time.Duration) { <-time.After(d) }
	wait(2 * time.Second)

	raised := replaceFile(t, s.policies, policies(livePolicy(fast)))
	wait(3 * time.Second)
	broken := replaceFile(t, s.policies, "policies: {api: {limits: none}}")
	wait(time.Second)
	lowered := replaceFile(t, s.policies, policies(livePolicy(slow)))
	wait(4 * time.Second)
	raisedAgain := replaceFile(t, s.policies, policies(livePolicy(fast)))
	s.awaitCalls(tasks, time.Minute)

	arrivals := s.upstream.Arrivals()
	between := func(from, to time.Time) []time.Time {
		first := slices.IndexFunc(arrivals, func(at time.Time) bool { return at.After(from) })
		end := slices.IndexFunc(arrivals, func(at time.Time) bool { return !at.Before(to) })
		return arrivals[first:end]
	}
	atOnce := func(rate int, from, to time.Time) int {
		return throttletest.MaxBurst(between(from, to), int64(rate), time.Second)
	}
	t.Logf("slow: %d at once; raised: %d in the first second, %d in the next two, %d at once; broken: %d; lowered: %d in the first second, %d in the next three, %d at once",
		atOnce(slow, arrivals[0].Add(-time.Second), raised), len(between(raised, raised.Add(time.Second))),
		len(between(raised.Add(time.Second), raised.Add(3*time.Second))), atOnce(fast, raised, broken),
		len(between(broken, lowered)), len(between(lowered, lowered.Add(time.Second))),
		len(between(lowered.Add(time.Second), raisedAgain)), atOnce(slow, lowered.Add(time.Second), raisedAgain))
	assert.LessOrEqual(t, atOnce(slow, arrivals[0].Add(-time.Second), raised), 10+2)
	assert.LessOrEqual(t, atOnce(fast, raised, broken), most, "never over")
	assert.GreaterOrEqual(t, len(between(raised.Add(time.Second), broken)), fast*2*80/100, "no old debt")
	assert.GreaterOrEqual(t, len(between(broken, lowered)), fast*80/100, "a broken file changes nothing")
	assert.LessOrEqual(t, atOnce(fast, broken, lowered), most)
	assert.LessOrEqual(t, len(between(lowered, lowered.Add(time.Second))), fast*8/10, "in force within a second")
	// What a pause of the machine leaves over may come at once after it, and nothing else.
	pause := longestPause(between(lowered, raisedAgain))
	assert.LessOrEqual(t, atOnce(slow, lowered.Add(time.Second), raisedAgain), 2+int(math.Ceil(slow*pause.Seconds())), "after %s", pause)

	assert.Equal(t, tasks, s.upstream.Count())
	assert.Len(t, s.called(), tasks, "each was called once")
	assert.LessOrEqual(t, outOfTurn(t, s.upstream), tasks*5/100, "in order")
	assert.Zero(t, s.queue().Archived)
	assert.Zero(t, s.queue().FailedTotal)
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
