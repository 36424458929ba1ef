package overhead

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// The test program is its own worker, as the bench is.
func TestMain(m *testing.M) {
	if IsWorker(os.Getenv) {
		os.Exit(Work(context.Background(), os.Getenv, os.Stdin, os.Stdout, os.Stderr))
	}
	throttletest.Main(m)
}

func none(string) string { return "" }

// measured is what a run on a Redis of its own reports, by kind.
func measured(t *testing.T, args ...string) map[string]result {
	t.Helper()
	server := throttletest.Redis(t)
	var stdout, stderr strings.Builder
	code := Run(t.Context(), append([]string{"-redis", server.URI(), "-json"}, args...), none, &stdout, &stderr)
	require.Equal(t, program.OK, code, stderr.String())
	assert.Zero(t, server.Client().DBSize(t.Context()).Val(), "a bench leaves nothing behind")
	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
	results := map[string]result{}
	for _, r := range got.Results {
		results[r.Name] = r
	}
	return results
}

func TestRunMeasuresEveryKind(t *testing.T) {
	t.Parallel()
	profile := filepath.Join(t.TempDir(), "cpu.out")
	got := measured(t, "-tasks", "300", "-rounds", "2", "-cpuprofile", profile)
	require.Len(t, got, len(kinds()))
	for name, r := range got {
		assert.Positive(t, r.PerSecond, name)
		assert.Positive(t, r.Share, name)
		assert.Positive(t, r.WorkerCPU, name)
		assert.GreaterOrEqual(t, r.Commands, 14.0, "%s: asynq's own", name)
		if name != string(plain) {
			assert.Greater(t, r.Commands, got[string(plain)].Commands, "%s: its policy is asked", name)
		}
	}
	assert.InDelta(t, 1, got[string(plain)].Share, 0)
	assert.FileExists(t, profile)
}

func TestTasksWithoutAPolicyAlwaysTakePart(t *testing.T) {
	t.Parallel()
	got := measured(t, "-tasks", "50", "-rounds", "1", "-only", "^lane$")
	require.Len(t, got, 2)
	assert.Contains(t, got, string(plain))
	assert.Contains(t, got, "lane")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no tasks":       {[]string{"-tasks", "0"}, "-tasks is 0"},
		"too many tasks": {[]string{"-tasks", "1000001"}, "-tasks is 1000001"},
		"no rounds":      {[]string{"-rounds", "0"}, "-rounds is 0"},
		"nobody at work": {[]string{"-concurrency", "0"}, "-concurrency is 0"},
		"no regexp":      {[]string{"-only", "("}, "-only: "},
		"an argument":    {[]string{"lane"}, `"lane"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := command.Parse(tt.args, none)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	turns := [][]turn{
		{{tasks: 100, took: time.Second}, {tasks: 100, took: 4 * time.Second}, {tasks: 100, took: time.Second}},
		{
			{tasks: 100, took: 2 * time.Second, worker: time.Millisecond, redis: harness.Spent{CPU: 3 * time.Millisecond, Commands: 1500}},
			{tasks: 100, took: 5 * time.Second, worker: 2 * time.Millisecond, redis: harness.Spent{CPU: 4 * time.Millisecond, Commands: 1600}},
			{tasks: 100, took: 4 * time.Second, worker: 3 * time.Millisecond, redis: harness.Spent{CPU: 5 * time.Millisecond, Commands: 1700}},
		},
	}
	r := &report{}
	r.summarize(kinds()[:2], turns)
	require.Len(t, r.Results, 2)
	assert.Equal(t, result{
		Name: "token_bucket", PerSecond: 25, Share: 0.5, Commands: 16, WorkerCPU: 20, RedisCPU: 40,
	}, r.Results[1], "the share is of the same round's, not the ratio of the medians")
}

// An interrupt ends the run, and leaves nothing behind.
func TestInterruptedRunEnds(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr strings.Builder
	code := Run(ctx, []string{"-redis", server.URI(), "-tasks", "10"}, none, &stdout, &stderr)
	assert.Equal(t, program.Failed, code)
	assert.Contains(t, stderr.String(), "canceled")
	assert.Zero(t, server.Client().DBSize(t.Context()).Val(), "a bench leaves nothing behind")
}
