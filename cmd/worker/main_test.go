package main

import (
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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// asCommand in the environment makes this test program be the worker itself, for
// the tests that need a process of its own.
const asCommand = "RAMPMETER_TEST_AS_COMMAND"

// patience is how long a test waits for what has to happen. It costs nothing when it does.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, e.get, &stdout, &stderr)
	require.NoError(t, ctx.Err(), "it did not end by itself")
	return outcome{code, stdout.String(), stderr.String()}
}

// policiesFile writes a policies file with one policy for http:request.
func policiesFile(t *testing.T) string {
	t.Helper()
	return writeFile(t, policies(bucket("100/1s", "")))
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
	assert.Equal(t, program.OK, got.code)
	assert.Empty(t, got.stderr)
	new(options).flags().VisitAll(func(f *flag.Flag) {
		assert.Regexp(t, "\n  -"+f.Name+"[ \n]", got.stdout)
		assert.Contains(t, got.stdout, "\n      "+program.Variable(f.Name)+"\n")
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
		assert.Equal(t, program.Failed, got.code)
		assert.Contains(t, got.stderr, "mistakes in it: 4\n")
		for _, want := range []string{":5: ", ":7: ", ":10: ", ":13: "} {
			assert.Contains(t, got.stderr, "\n"+path+want)
		}
	})
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "nowhere.yaml")
		got := runToEnd(t, nil, "-config", path, "-embedded")
		assert.Equal(t, program.Failed, got.code)
		assert.Contains(t, got.stderr, path)
		assert.Contains(t, got.stderr, "-config FILE")
	})
}

func TestRedisThatCanNotBeReached(t *testing.T) {
	t.Parallel()
	silent := takePort(t)        // it lets everybody in and answers nobody
	const nobody = "127.0.0.1:1" // a port that no server is ever given
	for name, address := range map[string]string{"refused": nobody, "silent": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := runToEnd(t, nil, "-config", policiesFile(t), "-redis", "redis://:secret@"+address)
			assert.Equal(t, program.Failed, got.code)
			assert.Contains(t, got.stderr, "no answer from Redis at "+address+": ")
			assert.Contains(t, got.stderr, "-redis URI")
			assert.Contains(t, got.stderr, "-embedded")
			assert.NotContains(t, got.stderr, "secret")
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
	assert.Equal(t, program.Failed, got.code)
	assert.Contains(t, got.stderr, "cannot listen on "+address+": another program has that port")
	assert.Contains(t, got.stderr, "-listen ADDR")

	got = runToEnd(t, nil, "-config", policiesFile(t), "-embedded", "-listen", "nonsense")
	assert.Equal(t, program.Failed, got.code)
	assert.Contains(t, got.stderr, "cannot listen on nonsense")
}

// workerLog is what a worker logs, a JSON object a line. It is the test's output, too.
type workerLog struct {
	*testing.T
	mu   sync.Mutex
	text []byte
	more chan struct{} // closed, and replaced, at each write
}

func newWorkerLog(t *testing.T) *workerLog { return &workerLog{T: t, more: make(chan struct{})} }

func (l *workerLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	close(l.more)
	l.more = make(chan struct{})
	return l.Output().Write(b)
}

// lines are those that are whole.
func (l *workerLog) lines() (lines []string, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines = strings.Split(string(l.text), "\n")
	return lines[:len(lines)-1], l.more
}

// await returns the n-th entry with one of the messages.
func (l *workerLog) await(n int, messages ...string) map[string]any {
	l.Helper()
	late := time.After(patience)
	for {
		lines, more := l.lines()
		seen := 0
		for _, line := range lines {
			var entry map[string]any
			_ = json.Unmarshal([]byte(line), &entry) // who dies says so in plain text
			if msg, _ := entry["msg"].(string); slices.Contains(messages, msg) {
				seen++
			}
			if seen == n {
				return entry
			}
		}
		select {
		case <-more:
		case <-late:
			require.FailNow(l, "not logged: "+messages[0])
		}
	}
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

// process is a worker that runs as one.
type process struct {
	*exec.Cmd
	log *workerLog
}

// startProcess starts the worker as a process, which is killed when the test ends.
func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{exec.CommandContext(t.Context(), os.Args[0], args...), newWorkerLog(t)}
	p.Env = append(os.Environ(), asCommand+"=1")
	p.Stderr = p.log
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		_ = p.Wait() // its second call, if the test has waited already
		assert.NotContains(t, string(p.log.text), "DATA RACE")
	})
	return p
}

// ends waits for the process and returns its exit code.
func (p *process) ends() int {
	timer := time.AfterFunc(patience, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	_ = p.Wait() // its exit code tells
	return p.ProcessState.ExitCode()
}
