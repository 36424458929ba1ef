package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// replaceFile puts a file in the place of another, as editors and Kubernetes do.
func replaceFile(t *testing.T, path, content string) (at time.Time) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next")
	require.NoError(t, os.WriteFile(next, []byte(content), 0o600))
	at = time.Now()
	require.NoError(t, os.Rename(next, path))
	return at
}

// What a worker tells of a policies file.
const (
	updated    = "policies updated"
	brokenFile = "the policies file can not be used, the policies that are in force stay; mend it, it is looked at"
)

// Law 9, in two processes with a parked backlog: what the file says is in force in both,
// to the last call, for tasks in line, too; a file that can not be used changes nothing;
// and all tasks run once, at no charge. What was used of a log's hour stays used: so
// nothing here depends on how long it takes.
func TestPoliciesFileIsLive(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, redis *throttletest.Server) {
		hourly := func(calls int) string {
			return fmt.Sprintf("{limits: [{name: calls, algorithm: sliding_log, rate: %d/1h}]}", calls)
		}
		s := newTestFleet(t, redis, throttletest.UpstreamConfig{}, hourly(10))
		workers := []*process{s.work(10), s.work(10)}
		for i, step := range []struct {
			file           string // written first
			tells          string // by each worker, for the n-th time, when it has read that
			n              int
			enqueue, calls int // how many then, and how many in all when all others are in line
		}{
			{policies(hourly(10)), "working", 1, 40, 10},
			{policies(hourly(1000)), updated, 1, 0, 40},
			{policies(hourly(60)), updated, 2, 40, 60},
			{"policies: {api: {limits: none}}", brokenFile, 1, 10, 60},
			{policies(hourly(1000)), updated, 3, 0, 90},
		} {
			replaceFile(t, s.policies, step.file)
			for _, worker := range workers {
				worker.log.await(step.n, step.tells)
			}
			s.enqueue(step.enqueue, alike)
			s.awaitQueue(fmt.Sprint("step ", i), func(q *asynq.QueueInfo) bool {
				return q.Pending+q.Active == 0 && q.Retry == s.enqueued-step.calls
			})
			require.Equal(t, step.calls, s.upstream.Count(), "step %d", i)
		}
		s.awaitEnd()
	})
}
