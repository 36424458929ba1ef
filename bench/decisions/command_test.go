package decisions

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Limits are used up for a moment only, and remembered for as long as a test may take.
func TestMain(m *testing.M) {
	narrow.period, usedUpFor = time.Hour, 10*time.Millisecond
	throttletest.Main(m)
}

type env map[string]string

func (e env) get(name string) string { return e[name] }

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := command.Parse([]string{"-rounds", "5", "-callers", "1, 20"}, env{
		"RAMPMETER_ROUNDS": "9", "RAMPMETER_KEYS": "3", "RAMPMETER_QUICK": "true",
	}.get)
	require.NoError(t, err)
	assert.Equal(t, 5, o.rounds, "a flag wins over its variable, and both over -quick")
	assert.Equal(t, numbers{1, 20}, o.callers)
	assert.Equal(t, numbers{3}, o.keys)
	assert.Equal(t, quickSlice, o.slice)

	for name, tt := range map[string]struct {
		args []string
		env  env
		want string
	}{
		"no such flag":      {[]string{"-fast"}, nil, "-fast"},
		"an argument":       {[]string{"redis_rate"}, nil, `"redis_rate"`},
		"no callers":        {[]string{"-callers", "1,0"}, nil, `"0" is not`},
		"an empty list":     {[]string{"-keys", ""}, nil, `"" is not`},
		"no rounds":         {[]string{"-rounds", "0"}, nil, "-rounds is 0"},
		"a moment":          {[]string{"-slice", "1us"}, nil, "-slice is 1µs"},
		"no connections":    {[]string{"-pool", "-1"}, nil, "-pool is -1"},
		"no regexp":         {[]string{"-only", "("}, nil, "-only: "},
		"a bad environment": {nil, env{"RAMPMETER_CALLERS": "many"}, `RAMPMETER_CALLERS="many"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := command.Parse(tt.args, tt.env.get)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestReferencesAlwaysTakePart(t *testing.T) {
	t.Parallel()
	o, err := command.Parse([]string{"-only", "^three"}, env{}.get)
	require.NoError(t, err)
	var names []string
	for _, c := range o.contenders() {
		names = append(names, c.name)
	}
	assert.Equal(t, []string{bareName, redisRateName, "three limits"}, names)
}

func TestRunMeasuresEverything(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	var stdout, stderr strings.Builder
	code := Run(t.Context(), []string{"-redis", server.URI(), "-json", "-rounds", "1", "-slice", "5ms", "-callers", "1,4", "-keys", "1,50"},
		env{}.get, &stdout, &stderr)
	require.Equal(t, program.OK, code, stderr.String())

	var got report
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
	names := map[string]int{}
	for _, r := range got.Cells {
		names[r.Name]++
		assert.Positive(t, r.PerSecond, r.Name)
		assert.Positive(t, r.P50, r.Name)
		assert.Positive(t, r.AgainstBare, r.Name)
		assert.Positive(t, r.AgainstRedisRate, r.Name)
		assert.NotContains(t, r.AnyError, errDenied.Error(), r.Name)
		if r.Name != "throttled" { // its compare-and-swap gives up under contention
			assert.Zero(t, r.Errors, "%s: %s", r.Name, r.AnyError)
		}
	}
	for _, name := range []string{bareName, redisRateName, "throttled", "ulule/limiter", "token_bucket", "three limits"} {
		assert.Equal(t, 4, names[name], "each of two levels on each of two sets of keys: %s", name)
	}
	for _, m := range got.Memory {
		if m.Name != bareName && m.Name != "concurrency" { // a slot that was given back is gone
			assert.Positive(t, m.Idle, m.Name)
			assert.Positive(t, m.Full, m.Name)
		}
	}
	size, err := server.Client().DBSize(t.Context()).Result()
	require.NoError(t, err)
	assert.Zero(t, size, "a bench leaves nothing behind")
}

func TestInterruptedRunTellsWhatItHas(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	session, err := harness.Open(t.Context(), server.URI(), io.Discard)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := &bench{
		Session:    session,
		contenders: others(),
		options:    &options{rounds: 1, slice: time.Millisecond, callers: numbers{1}, keys: numbers{1}, pool: 1},
	}
	got, err := b.run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotNil(t, got)
	assert.Empty(t, got.Cells)
	require.NoError(t, session.Close())
}
