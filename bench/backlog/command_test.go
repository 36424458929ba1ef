package backlog

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
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

// Two worker processes of each contender that needs nothing from npm, with real
// HTTP calls. What is certain at this size is asserted, however busy the machine.
func TestRunMeasuresEveryContender(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	var stdout, stderr strings.Builder
	code := Run(t.Context(), []string{
		"-redis", server.URI(), "-json", "-scenarios", "tenants", "-tasks", "230", "-rate", "200/s", "-during",
		"-only", "asynq|rampmeter",
	}, none, &stdout, &stderr)
	require.Equal(t, harness.ExitOK, code, stderr.String())

	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
	require.Len(t, got.Scenarios, 1)
	figures := map[string]map[string]float64{}
	for _, r := range got.Scenarios[0].Results {
		assert.Empty(t, r.Error, r.Name)
		assert.False(t, r.Cut, r.Name)
		assert.Zero(t, r.Figures["left"], r.Name)
		assert.Zero(t, r.Figures["archived"], r.Name)
		assert.GreaterOrEqual(t, r.Figures["attempts_per_task"], 1.0, r.Name)
		assert.Positive(t, r.Figures["done_s"], r.Name)
		assert.Positive(t, r.Figures["small_done_s"], r.Name)
		figures[r.Name] = r.Figures
	}
	require.Len(t, figures, 4)
	plain := figures["asynq, no limit"]
	assert.InDelta(t, 4, plain["commands_per_enqueue"], 0.5)
	assert.InDelta(t, 1, plain["attempts_per_task"], 1e-9)
	assert.InDelta(t, 14, plain["commands_per_task"], 1.5, "without what enqueueing costs")
	assert.NotContains(t, plain, "quota_used")
	for _, name := range []string{"rampmeter, waiting", "rampmeter, parked", "rampmeter, parked at once"} {
		assert.LessOrEqual(t, figures[name]["over"], 20.0, "%s: a tenth of a second is the busy machine's", name)
	}
	size, err := server.Client().DBSize(t.Context()).Result()
	require.NoError(t, err)
	assert.Zero(t, size, "a bench leaves nothing behind")
}

// A concurrency limit is judged by how many calls the API had at once.
func TestRunMeasuresSlots(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	var stdout, stderr strings.Builder
	code := Run(t.Context(), []string{
		"-redis", server.URI(), "-json", "-scenarios", "slots,tenant-slots", "-tasks", "80", "-only", "tuned|parked$",
	}, none, &stdout, &stderr)
	require.Equal(t, harness.ExitOK, code, stderr.String())
	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
	for _, s := range got.Scenarios {
		require.Len(t, s.Results, 2)
		for _, r := range s.Results {
			assert.LessOrEqual(t, r.Figures["over"], 0.0, "%s, %s", s.Name, r.Name)
			assert.Zero(t, r.Figures["left"], "%s, %s", s.Name, r.Name)
			assert.Greater(t, r.Figures["quota_used"], 0.1, "%s, %s", s.Name, r.Name)
		}
	}
}

// Tasks without a retry left: the usual pattern loses those it puts off.
func TestRunTellsOfArchivedTasks(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	var stdout, stderr strings.Builder
	code := Run(t.Context(), []string{
		"-redis", server.URI(), "-json", "-scenarios", "last-attempt", "-tasks", "40", "-rate", "20/s", "-only", "tuned|waiting",
	}, none, &stdout, &stderr)
	require.Equal(t, harness.ExitOK, code, stderr.String())
	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
	results := got.Scenarios[0].Results
	require.Len(t, results, 2)
	assert.Greater(t, results[0].Figures["archived"], 20.0)
	assert.Zero(t, results[0].Figures["left"])
	assert.Zero(t, results[1].Figures["archived"])
	assert.Zero(t, results[1].Figures["left"])
	assert.InDelta(t, 1, results[1].Figures["attempts_per_task"], 1e-9, "what spent the retries is not counted")
}

func TestInterruptedRunTellsWhatItHas(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	require.NoError(t, server.Client().Set(t.Context(), "left", 1, time.Hour).Err())
	ctx, cancel := context.WithCancel(t.Context())
	o, err := parseOptions([]string{"-only", "waiting"}, none)
	require.NoError(t, err)
	tables := 0
	b := &bench{
		redis: server.Options(), options: o, progress: harness.NewProgress(io.Discard),
		head:  func(*report) error { cancel(); return nil },
		table: func(*section) error { tables++; return nil },
	}
	got, err := b.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotNil(t, got)
	assert.Equal(t, 1, tables)
	assert.Zero(t, server.Client().DBSize(t.Context()).Val(), "a bench leaves nothing behind")
}

func TestRunDoesNotEmptyADatabaseInUse(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	require.NoError(t, server.Client().Set(t.Context(), "precious", 1, time.Hour).Err())
	var stdout, stderr strings.Builder
	code := Run(t.Context(), []string{"-redis", server.URI(), "-quick"}, none, &stdout, &stderr)
	assert.Equal(t, harness.ExitFailed, code)
	assert.Contains(t, stderr.String(), "holds 1 keys")
	assert.Empty(t, stdout.String())
	require.NoError(t, server.Client().Get(t.Context(), "precious").Err())
}
