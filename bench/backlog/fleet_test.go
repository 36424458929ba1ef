package backlog

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
)

// shell is a worker that is a script.
func shell(script string) func() (*program.Worker, error) {
	return func() (*program.Worker, error) { return program.StartWorker(jobVariable, nil, "sh", "-c", script) }
}

func TestFleetAddsUpWhatWorkersTell(t *testing.T) {
	t.Parallel()
	f, err := startFleet(2, 4, shell(`echo '{"ready":true}'; read go; echo '{"attempts":[0,1,1,9],"done":3}'; read end; echo '{"attempts":[2]}'`))
	require.NoError(t, err)
	_, _, done, err := f.told()
	require.NoError(t, err)
	assert.Zero(t, done, "they wait to go")
	require.NoError(t, f.goAhead())
	var attempts, distinct int
	require.Eventually(t, func() bool {
		attempts, distinct, done, err = f.told()
		return done == 6 || err != nil
	}, time.Minute, time.Millisecond)
	require.NoError(t, err)
	assert.Equal(t, 8, attempts)
	assert.Equal(t, 2, distinct, "task 9 is not one of ours")
	require.NoError(t, f.stop())
	assert.Equal(t, 10, f.attempts, "what they said last counts")
	assert.Len(t, f.tempo, 4)
}

func TestFleetTellsWhyAWorkerEnded(t *testing.T) {
	t.Parallel()
	_, err := startFleet(1, 1, shell("echo the reason >&2; exit 3"))
	require.ErrorContains(t, err, "exit status 3: the reason")

	f, err := startFleet(1, 1, shell(`echo '{"ready":true}'; read go; exit 4`))
	require.NoError(t, err)
	require.NoError(t, f.goAhead())
	require.Eventually(t, func() bool {
		_, _, _, err = f.told()
		return err != nil
	}, time.Minute, time.Millisecond)
	require.ErrorContains(t, err, "ended")
	require.ErrorContains(t, f.stop(), "exit status 4")
}

func TestWorkerNeedsAJob(t *testing.T) {
	t.Parallel()
	for job, want := range map[string]string{
		"{":  jobVariable,
		"{}": "required",
		`{"redis":"redis://127.0.0.1:1","api":"http://127.0.0.1:1","concurrency":1,"kind":"cron"}`: `no workers of kind "cron"`,
	} {
		var stdout, stderr strings.Builder
		code := Work(t.Context(), func(string) string { return job }, strings.NewReader(""), &stdout, &stderr)
		assert.NotZero(t, code)
		assert.Contains(t, stderr.String(), want)
	}
}
