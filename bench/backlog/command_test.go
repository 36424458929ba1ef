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
	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// The test program is its own worker, as the bench is.
func TestMain(m *testing.M) {
	if IsWorker(os.Getenv) {
		os.Exit(Work(context.Background(), os.Getenv, os.Stdin, os.Stdout, os.Stderr))
	}
	idleFor = 100 * time.Millisecond
	throttletest.Main(m)
}

func none(string) string { return "" }

// measured is what a run on a Redis of its own reports, by scenario. No turn is to be cut.
func measured(t *testing.T, args ...string) []*section {
	t.Helper()
	server := throttletest.Redis(t)
	var stdout, stderr strings.Builder
	code := Run(t.Context(), append([]string{"-redis", server.URI(), "-json"}, args...), none, &stdout, &stderr)
	require.Equal(t, program.OK, code, stderr.String())
	assert.Zero(t, server.Client().DBSize(t.Context()).Val(), "a bench leaves nothing behind")
	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
	for _, s := range got.Scenarios {
		for _, r := range s.Results {
			assert.Empty(t, r.Error, "%s, %s", s.Name, r.Name)
			assert.False(t, r.Cut, "%s, %s", s.Name, r.Name)
			assert.Zero(t, r.Figures["left"], "%s, %s", s.Name, r.Name)
		}
	}
	return got.Scenarios
}

// measuredTenants is of each contender that needs nothing from npm, with two worker
// processes and real HTTP calls, which are enqueued while they work, too.
func measuredTenants(t *testing.T, rate string) map[string]map[string]float64 {
	t.Helper()
	figures := map[string]map[string]float64{}
	for _, r := range measured(t, "-scenarios", "tenants", "-tasks", "230", "-rate", rate, "-during", "-only", "asynq|rampmeter")[0].Results {
		figures[r.Name] = r.Figures
	}
	require.Len(t, figures, 4)
	return figures
}

func TestRunMeasuresEveryContender(t *testing.T) {
	t.Parallel()
	figures := measuredTenants(t, "1000/s")
	for name, of := range figures {
		assert.Zero(t, of["archived"], name)
		assert.GreaterOrEqual(t, of["attempts_per_task"], 1.0, name)
		assert.Positive(t, of["commands_per_task"], name)
		assert.Positive(t, of["done_s"], name)
		assert.Positive(t, of["small_done_s"], name)
		assert.Equal(t, name != "asynq, no limit", of["quota_used"] > 0, name)
	}
	plain := figures["asynq, no limit"]
	assert.InDelta(t, 4, plain["commands_per_enqueue"], 0.5)
	assert.InDelta(t, 1, plain["attempts_per_task"], 1e-9)
}

// A concurrency limit is judged by how many calls the API had at once.
func TestRunMeasuresSlots(t *testing.T) {
	t.Parallel()
	scenarios := measured(t, "-scenarios", "slots,tenant-slots", "-tasks", "40", "-rate", "4/10ms", "-only", "tuned|parked$")
	require.Len(t, scenarios, 2)
	for _, s := range scenarios {
		require.Len(t, s.Results, 2)
		for _, r := range s.Results {
			assert.LessOrEqual(t, r.Figures["over"], 0.0, r.Name)
			assert.Positive(t, r.Figures["quota_used"], r.Name)
		}
	}
}

// Tasks without a retry left: the usual pattern loses those it puts off.
func TestRunTellsOfArchivedTasks(t *testing.T) {
	t.Parallel()
	putOff := measured(t, "-scenarios", "last-attempt", "-tasks", "20", "-rate", "1/1h", "-only", "tuned")[0].Results[0]
	assert.InDelta(t, 19, putOff.Figures["archived"], 1e-9, "all but the one of the burst")
	waiting := measured(t, "-scenarios", "last-attempt", "-tasks", "20", "-rate", "100/s", "-only", "waiting")[0].Results[0]
	assert.Zero(t, waiting.Figures["archived"])
	assert.InDelta(t, 1, waiting.Figures["attempts_per_task"], 1e-9)
}

// onFirstWrite does something when the first is written to it.
type onFirstWrite struct {
	strings.Builder

	do func()
}

func (w *onFirstWrite) Write(p []byte) (int, error) {
	w.do()
	return w.Builder.Write(p)
}

func TestInterruptedRunTellsWhatItHas(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	session, err := harness.Open(t.Context(), server.URI(), io.Discard)
	require.NoError(t, err)
	require.NoError(t, server.Client().Set(t.Context(), "left", 1, time.Hour).Err())
	ctx, cancel := context.WithCancel(t.Context())
	o, err := command.Parse([]string{"-only", "waiting"}, none)
	require.NoError(t, err)
	tables := &onFirstWrite{do: cancel}
	b := &bench{Session: session, options: o, tables: tables}
	got, err := b.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotNil(t, got)
	assert.Contains(t, tables.String(), "\none-lane: ")
	require.NoError(t, session.Close())
	assert.Zero(t, server.Client().DBSize(t.Context()).Val(), "a bench leaves nothing behind")
}
