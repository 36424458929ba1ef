package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m) }

// patience is for what is sure to happen on any machine; it costs nothing when it does.
const patience = 2 * time.Minute

// result is what a run of the command left behind.
type result struct {
	code     int
	out, err string
}

// enqueue runs the command as a shell would.
func enqueue(t *testing.T, args ...string) result {
	t.Helper()
	return enqueueWith(t, t.Context(), nil, strings.NewReader(""), args...)
}

// enqueueInNoTime runs the command where time goes on only when everybody waits: pauses
// between tries are none, and a slow machine is not slow.
func enqueueInNoTime(t *testing.T, args ...string) (got result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { got = enqueue(t, args...) })
	return got
}

func enqueueWith(t *testing.T, ctx context.Context, environment map[string]string, stdin io.Reader, args ...string) result {
	t.Helper()
	var out, err bytes.Buffer
	getenv := func(name string) string { return environment[name] }
	code := run(ctx, args, getenv, stdin, &out, &err)
	return result{code, out.String(), err.String()}
}

// file writes a file into a folder of the test's own.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// limiterOn is a limiter as other programs have it.
func limiterOn(t *testing.T, srv *throttletest.Server, policiesFile string) *throttle.Limiter {
	t.Helper()
	config, err := policy.ReadFile(policiesFile)
	require.NoError(t, err)
	limiter, err := throttle.New(srv.Client(), config)
	require.NoError(t, err)
	return limiter
}

func inspector(srv *throttletest.Server) *asynq.Inspector {
	return asynq.NewInspectorFromRedisClient(srv.Client())
}

func pending(t *testing.T, srv *throttletest.Server, queue string) []*asynq.TaskInfo {
	t.Helper()
	tasks, err := inspector(srv).ListPendingTasks(queue, asynq.PageSize(1000))
	if err != nil {
		require.ErrorIs(t, err, asynq.ErrQueueNotFound)
	}
	return tasks
}

const policiesFile = `
policies:
  github:
    limits:
      - {name: all, algorithm: token_bucket, rate: 10/s}
      - {name: hourly, algorithm: fixed_window, rate: 100/1h, per: installation, cost: points}
routes:
  - {task: "http:request", policy: github}
`

func TestHelpTeaches(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-h"}, {"--help"}, {"help"}} {
		got := enqueue(t, args...)
		assert.Equal(t, program.OK, got.code)
		for _, c := range commands() {
			assert.Contains(t, got.out, c.name)
			assert.Contains(t, got.out, c.brief)
		}
	}
	for _, c := range commands() {
		for _, args := range [][]string{{c.name, "-h"}, {"help", c.name}, {c.name, "x", "-help"}} {
			got := enqueue(t, args...)
			assert.Equal(t, program.OK, got.code, args)
			assert.Empty(t, got.err)
			assert.Contains(t, got.out, "Usage:\n\n  enqueue "+c.name)
			assert.Contains(t, got.out, "Examples:\n\n  ")
			assert.Contains(t, got.out, "RAMPMETER_REDIS")
			assert.Contains(t, got.out, "Exit codes: 0")
		}
	}
}

// Whatever is wrong with the command line is said in one go, without touching
// Redis, with a hint and exit code 2.
func TestBadUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"no command":          {nil, []string{"no command; there are http, batch, status, freeze, unfreeze and schedule", "Run 'enqueue -h' for help."}},
		"unknown command":     {[]string{"htpt"}, []string{`"htpt" is no command`, "Run 'enqueue -h' for help."}},
		"unknown flag":        {[]string{"http", "-qeue", "x", "http://h"}, []string{"flag provided but not defined: -qeue", "Run 'enqueue http -h' for help."}},
		"no URL":              {[]string{"http"}, []string{"no URL"}},
		"two URLs":            {[]string{"http", "http://h", "http://i"}, []string{`unexpected argument "http://i" after "http://h"`}},
		"bad URL":             {[]string{"http", "h/x"}, []string{`url "h/x" must start with http:// or https://`}},
		"bad method":          {[]string{"http", "-method", "G T", "http://h"}, []string{`method "G T"`}},
		"bad header":          {[]string{"http", "-header", "Accept", "http://h"}, []string{"write it as NAME:VALUE"}},
		"bad attribute":       {[]string{"http", "-attr", "installation", "http://h"}, []string{"write it as NAME=VALUE"}},
		"attribute twice":     {[]string{"http", "-attr", "a=1", "-attr", "a=2", "http://h"}, []string{"a is given twice"}},
		"several at once":     {[]string{"http", "-count", "0", "-redis", "http://h", "-timeout", "10ms", "http://h"}, []string{"-count is 0", "-redis: asynq: unsupported uri scheme", "timeout: 10ms must be whole seconds"}},
		"one id for two":      {[]string{"http", "-id", "a", "-count", "2", "http://h"}, []string{"-id names one task, but -count asks for 2"}},
		"no file":             {[]string{"batch"}, []string{"no file; name one with a task a line, or - for standard input"}},
		"numbers below one":   {[]string{"batch", "-from", "0", "-workers", "-1", "-max-line", "0", "f"}, []string{"-from is 0", "-workers is -1", "-max-line is 0"}},
		"no number":           {[]string{"batch", "-workers", "many", "f"}, []string{`invalid value "many" for flag -workers`}},
		"status of something": {[]string{"status", "github"}, []string{`-config is missing; the policies say where task "github" may stand in line`}},
		"no schedule":         {[]string{"schedule"}, []string{"no schedule file"}},
		"no host":             {[]string{"status", "-redis", "redis:///0"}, []string{"the URI names no host"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := enqueue(t, c.args...)
			assert.Equal(t, program.Usage, got.code)
			assert.Empty(t, got.out)
			for _, text := range append(c.says, "for help.") {
				assert.Contains(t, got.err, text)
			}
		})
	}
}

func TestMessagesKeepThePassword(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{"redis://:hunter2@h:port", "redis://:hunter2@127.0.0.1:1/x", "redis://:hunter2@127.0.0.1:1", "rediss://:hunter2@"} {
		got := enqueueInNoTime(t, "status", "-redis", uri)
		assert.NotEqual(t, program.OK, got.code)
		assert.NotContains(t, got.err, "hunter2")
	}
}

func TestUnreachableRedis(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1" // a port that no server is ever given
	lines := file(t, "tasks.ndjson", `{"url":"http://h"}`)
	schedule := file(t, "schedule.yaml", `schedule: [{name: a, cron: "* * * * *", type: t}]`)
	for _, args := range [][]string{{"http", "http://h"}, {"batch", lines}, {"status"}, {"schedule", schedule}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			got := enqueueInNoTime(t, append(args, "-redis", "redis://"+nobody)...)
			assert.Equal(t, program.Failed, got.code)
			assert.Contains(t, got.err, "enqueue "+args[0]+": cannot reach Redis at "+nobody+": ")
			assert.Contains(t, got.err, "-redis URI or RAMPMETER_REDIS")
		})
	}
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	srv := throttletest.Redis(t)
	require.NoError(t, srv.Client().ConfigSet(t.Context(), "requirepass", "secret").Err())
	got := enqueue(t, "status", "-redis", srv.URI())
	assert.Equal(t, program.Failed, got.code)
	assert.Contains(t, got.err, "Redis at "+srv.Addr()+" does not let us in: NOAUTH")
	assert.Contains(t, got.err, "Put the password into the URI")
	got = enqueue(t, "status", "-redis", "redis://:secret@"+srv.Addr())
	assert.Equal(t, program.OK, got.code, got.err)
}

func TestRedisURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"redis://h":                         "h:6379",
		"redis://h:7000/3":                  "h:7000",
		"redis://[::1]":                     "[::1]:6379",
		"rediss://user:pw@h":                "h:6379",
		"redis-socket:///run/redis.sock":    "/run/redis.sock",
		"redis-sentinel://a:1,b:2?master=m": `a:1,b:2 (master "m")`,
	} {
		s := server{uri: uri}
		require.NoError(t, s.check(), uri)
		assert.Equal(t, want, s.address)
	}
	s := server{uri: "redis://user:pw@h"}
	require.NoError(t, s.check())
	assert.Equal(t, "user", s.conn.(asynq.RedisClientOpt).Username)
}
