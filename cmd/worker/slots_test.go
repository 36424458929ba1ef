package main

import (
	"fmt"
	"net/http/httptest"
	"os/exec"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/httprequest"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Two worker processes share slots, judged by the upstream's record: hardly a slot is
// empty while tasks are in line, and never are there more calls than slots. Then one is
// killed, with all that calls and stands by there: the other goes on within seconds, with
// the slots of those who called as soon as their leases have run out.
func TestTwoProcessesShareSlots(t *testing.T) {
	const slots, tasks, concurrency, takes = 6, 500, 16, 150 * time.Millisecond
	redis := throttletest.Redis(t)
	upstream, err := throttletest.NewUpstream(throttletest.UpstreamConfig{Latency: takes})
	require.NoError(t, err)
	api := httptest.NewServer(upstream)
	t.Cleanup(api.Close)
	opt := asynq.RedisClientOpt{Addr: redis.Addr()}
	client, inspector := asynq.NewClient(opt), asynq.NewInspector(opt)
	t.Cleanup(func() {
		assert.NoError(t, client.Close())
		assert.NoError(t, inspector.Close())
	})
	for i := range tasks {
		payload, err := httprequest.Payload{URL: fmt.Sprintf("%s/%d", api.URL, i)}.Encode()
		require.NoError(t, err)
		_, err = client.Enqueue(asynq.NewTaskWithHeaders(httprequest.TaskType, payload, map[string]string{"tenant": "a"}))
		require.NoError(t, err)
	}
	policies := writeFile(t, fmt.Sprintf(`
policies:
  api:
    limits:
      - {name: at-once, algorithm: concurrency, slots: %d, lease: 2s}
    lane: tenant
routes:
  - {task: "http:request", policy: api}
`, slots))
	start := func() *exec.Cmd {
		return startWorker(t, "-config", policies, "-redis", redis.URI(),
			"-concurrency", fmt.Sprint(concurrency), "-log-level", "error")
	}
	first := start()
	start()
	const early, late = 60, 300 // until all are parked, and when one is killed
	waitForCalls(t, upstream, late)
	require.NoError(t, first.Process.Kill())
	killed := time.Now()
	require.Eventually(t, func() bool {
		info, err := inspector.GetQueueInfo("default")
		return err == nil && info.Pending == 0 && info.Active+info.Retry <= concurrency && len(urls(upstream))+concurrency >= tasks
	}, 2*time.Minute, 50*time.Millisecond)

	arrivals := upstream.Arrivals()
	// Who has a slot calls for as long as all others.
	atOnce := throttletest.MaxInAnyInterval(arrivals, takes-time.Millisecond)
	assert.LessOrEqual(t, atOnce, slots, "never over")
	busy := float64(late-early) * takes.Seconds() / (slots * arrivals[late-1].Sub(arrivals[early-1]).Seconds())
	assert.Greater(t, busy, 0.85)
	var longest time.Duration
	slow := 0 // starts while the slots of the killed are still theirs
	for i := late; i < min(len(arrivals), tasks-concurrency); i++ {
		longest = max(longest, arrivals[i].Sub(arrivals[i-1]))
		if arrivals[i].Sub(killed) < 5*time.Second {
			slow++
		}
	}
	assert.Less(t, longest, 4*time.Second, "the slots go on")
	assert.Greater(t, slow, 30)
	info, err := inspector.GetQueueInfo("default")
	require.NoError(t, err)
	assert.Zero(t, info.Archived)
	assert.GreaterOrEqual(t, len(urls(upstream))+info.Active+info.Retry, tasks, "nobody is lost")
	t.Logf("slots busy %.1f %%, %d at once, longest pause after a kill %s, %d calls in the 5 s after it",
		100*busy, atOnce, longest.Round(time.Millisecond), slow)
}
