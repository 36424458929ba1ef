package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// asCommand in the environment makes this test program be the worker itself, for
// the tests that need a process of its own.
const asCommand = "RAMPMETER_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	logging.Disable()
	throttletest.Main(m)
}

// env is an environment of nothing but these variables.
type env map[string]string

func (e env) get(name string) string { return e[name] }

// outcome is what a run that ends by itself leaves behind.
type outcome struct {
	code           int
	stdout, stderr string
}

func runToEnd(t *testing.T, e env, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, e.get, &stdout, &stderr)
	require.NoError(t, ctx.Err(), "it did not end by itself")
	return outcome{code, stdout.String(), stderr.String()}
}

// policiesFile writes a policies file with one policy for http:request.
func policiesFile(t *testing.T) string {
	t.Helper()
	return writeFile(t, policies(`
    limits:
      - {name: calls, algorithm: token_bucket, rate: 100/1s}
`))
}

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestHelpNamesEveryFlag(t *testing.T) {
	t.Parallel()
	got := runToEnd(t, nil, "-h")
	assert.Equal(t, exitOK, got.code)
	assert.Empty(t, got.stderr)
	new(options).flags().VisitAll(func(f *flag.Flag) {
		assert.Regexp(t, "\n  -"+f.Name+"[ \n]", got.stdout)
		assert.Contains(t, got.stdout, "\n      "+envName(f.Name)+"\n")
	})
	assert.Contains(t, got.stdout, "RAMPMETER_SHUTDOWN_TIMEOUT")
	assert.Contains(t, got.stdout, "Examples:")
}

func TestHelpShowsAPoliciesFileThatWorks(t *testing.T) {
	t.Parallel()
	_, after, found := strings.Cut(helpAfter, "A policies file:\n")
	require.True(t, found)
	file, _, found := strings.Cut(after, "\nThe file is watched")
	require.True(t, found)
	_, err := readPolicies(writeFile(t, file))
	require.NoError(t, err)
}

func TestPoliciesFileThatCanNotBeUsed(t *testing.T) {
	t.Parallel()
	t.Run("every mistake is named", func(t *testing.T) {
		t.Parallel()
		path := writeFile(t, `policies:
  github:
    limits:
      - name: hourly
        algorithm: tokenbucket
        rate: 5000/1h
        brust: 100
      - name: minutely
        algorithm: fixed_window
        rate: many
routes:
  - task: "http:request"
    policy: githb
`)
		got := runToEnd(t, nil, "-config", path, "-embedded")
		assert.Equal(t, exitFailed, got.code)
		assert.Contains(t, got.stderr, "mistakes in it: 4\n")
		for _, want := range []string{":5: ", ":7: ", ":10: ", ":13: "} {
			assert.Contains(t, got.stderr, "\n"+path+want)
		}
	})
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "nowhere.yaml")
		got := runToEnd(t, nil, "-config", path, "-embedded")
		assert.Equal(t, exitFailed, got.code)
		assert.Contains(t, got.stderr, path)
		assert.Contains(t, got.stderr, "-config FILE")
	})
}

func TestRedisThatCanNotBeReached(t *testing.T) {
	t.Parallel()
	silent := takePort(t) // it lets everybody in and answers nobody
	closed := takePort(t)
	require.NoError(t, closed.Close())

	for name, address := range map[string]string{"refused": closed.Addr().String(), "silent": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			got := runToEnd(t, nil, "-config", policiesFile(t), "-redis", "redis://:secret@"+address)
			assert.Equal(t, exitFailed, got.code)
			assert.Contains(t, got.stderr, "no answer from Redis at "+address+": ")
			assert.Contains(t, got.stderr, "-redis URI")
			assert.Contains(t, got.stderr, "-embedded")
			assert.NotContains(t, got.stderr, "secret")
			assert.Less(t, time.Since(began), 2*startProbeTimeout)
		})
	}
}

// takePort listens on a free port until the test ends.
func takePort(t *testing.T) net.Listener {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	address := takePort(t).Addr().String()

	got := runToEnd(t, nil, "-config", policiesFile(t), "-embedded", "-listen", address)
	assert.Equal(t, exitFailed, got.code)
	assert.Contains(t, got.stderr, "cannot listen on "+address+": another program has that port")
	assert.Contains(t, got.stderr, "-listen ADDR")

	got = runToEnd(t, nil, "-config", policiesFile(t), "-embedded", "-listen", "nonsense")
	assert.Equal(t, exitFailed, got.code)
	assert.Contains(t, got.stderr, "cannot listen on nonsense")
}

// logLines reads what a worker logs, a JSON object a line.
type logLines struct{ scanner *bufio.Scanner }

func newLogLines(r io.Reader) *logLines { return &logLines{bufio.NewScanner(r)} }

// await returns the next entry with that message. What follows it is to be read
// with drain, or the worker would wait for its log.
func (l *logLines) await(t *testing.T, message string) map[string]any {
	t.Helper()
	var seen []string
	for l.scanner.Scan() {
		seen = append(seen, l.scanner.Text())
		var entry map[string]any
		require.NoError(t, json.Unmarshal(l.scanner.Bytes(), &entry), l.scanner.Text())
		if entry["msg"] == message {
			return entry
		}
	}
	require.Fail(t, "not logged: "+message, strings.Join(seen, "\n"))
	return nil
}

// drain reads to the end in the background, and returns a function that waits
// for it and returns the lines.
func (l *logLines) drain() func() []string {
	lines := make(chan []string, 1)
	go func() {
		var rest []string
		for l.scanner.Scan() {
			rest = append(rest, l.scanner.Text())
		}
		lines <- rest
	}()
	return func() []string { return <-lines }
}

// get asks a worker's status server.
func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// commandThatLogs starts the worker as a process of its own, and returns it when it
// works.
func commandThatLogs(t *testing.T, args ...string) (*exec.Cmd, *logLines) {
	t.Helper()
	cmd := command(t, args...)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := newLogLines(stderr)
	lines.await(t, "working")
	return cmd, lines
}

// command is the worker as a process of its own, to be started.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	return cmd
}
