package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

const mixed = `{"url":"http://h/1","id":"one"}
{"url":"http://h/2","attributes":{"installation":42}}

{"url":"http://h/3","id":"one"}
not json
{"type":"email:send","payload":{"to":"a@b"}}
`

func TestBatchFile(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		got := enqueue(t, "batch", "-redis", srv.URI(), file(t, "tasks.ndjson", mixed), "-workers", "1")
		assert.Equal(t, program.OK, got.code)
		assert.Equal(t, "2 tasks enqueued, 1 already there, 2 bad lines\n", got.out)
		assert.ElementsMatch(t, []string{
			`bad line 2: attributes: must be a JSON object of strings, as in {"installation":"42"}`,
			`already there: line 4: a task of this id is in the queue`,
			`bad line 5: no JSON: invalid character 'o' in literal null (expecting 'u')`,
		}, strings.Split(strings.TrimSpace(got.err), "\n"))
		assert.Len(t, pending(t, srv, "default"), 2)
	})
}

func TestBatchFromStandardInput(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		config := file(t, "policies.yaml", policiesFile)
		input := strings.Repeat(`{"url":"http://h","attributes":{"installation":"7","points":"60"}}`+"\n", 5)
		got := enqueueWith(t, t.Context(), nil, strings.NewReader(input), "batch", "-", "-redis", srv.URI(), "-config", config)
		assert.Equal(t, result{program.OK, "5 tasks enqueued\n" +
			"the quota makes them take about 2h0m: limit hourly of policy github for installation=7 is the narrowest\n", ""}, got)
		assert.Len(t, pending(t, srv, "default"), 5)
	})
}

// More tasks than there are tokens for stand in line at once, where lanes share them.
func TestBatchPutsTasksIntoLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		config := file(t, "policies.yaml", `
policies:
  api: {lane: tenant, limits: [{name: rate, algorithm: token_bucket, rate: 10/1h}]}
routes: [{task: "http:request", policy: api}]
`)
		tasks := file(t, "tasks", strings.Repeat(`{"url":"http://h","attributes":{"tenant":"7"}}`+"\n", 30))
		got := enqueueInNoTime(t, "batch", "-redis", srv.URI(), "-config", config, tasks)
		assert.Equal(t, program.OK, got.code, got.err)
		assert.Contains(t, got.out, "30 tasks enqueued, 20 of them in line\n")
		assert.Len(t, pending(t, srv, "default"), 10)
		got = enqueue(t, "http", "-redis", srv.URI(), "-config", config, "-attr", "tenant=7", "-id", "last", "http://h")
		assert.Contains(t, got.out, "1 task enqueued in queue \"default\", 1 of them in line\n")
		got = enqueue(t, "status", "-redis", srv.URI(), "-config", config, "last")
		assert.Contains(t, got.out, "policy: api; number 21 in line of lane 7, since ")
		assert.Contains(t, got.out, "asked: 0 times")
	})
}

func TestBatchWithoutPolicyForIt(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	got := enqueue(t, "batch", "-redis", srv.URI(), "-config", file(t, "p.yaml", policiesFile), file(t, "t", `{"type":"t"}`))
	assert.Equal(t, "1 task enqueued\nno policy governs them: they run as fast as workers take them\n", got.out)
}

func TestBatchStrict(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		got := enqueue(t, "batch", "-strict", "-redis", srv.URI(), file(t, "tasks.ndjson", mixed))
		assert.Equal(t, program.Failed, got.code)
		assert.Equal(t, "0 tasks enqueued, 2 bad lines\n", got.out)
		assert.Contains(t, got.err, "bad line 2: ")
		assert.Contains(t, got.err, "bad line 5: ")
		assert.Contains(t, got.err, "enqueue batch: nothing was enqueued, because of 2 bad lines: line 2: ")
		assert.Empty(t, pending(t, srv, "default"))

		got = enqueueWith(t, t.Context(), nil, strings.NewReader(mixed), "batch", "-strict", "-redis", srv.URI(), "-")
		assert.Equal(t, program.Failed, got.code)
		assert.Equal(t, "1 task enqueued, 1 bad line\n", got.out)
		assert.Contains(t, got.err, "stopped at a bad line after 1 task had gone in: line 2: ")
		assert.Len(t, pending(t, srv, "default"), 1, "of standard input what comes before the bad line is in")
	})
}

func TestBatchOfSomethingElse(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	got := enqueue(t, "batch", "-redis", srv.URI(), file(t, "poem.txt", strings.Repeat("roses are red\n", 50)))
	assert.Equal(t, program.Failed, got.code, "when no line is a task that is no success")
	assert.Equal(t, 20, strings.Count(got.err, "bad line "), "named are the first")
	assert.Contains(t, got.err, "and 30 bad lines more\n")
	assert.Contains(t, got.err, "enqueue batch: no line is a task")
}

func TestBatchBadFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{folder + "/none"}, "none: no such file or directory"},
		{[]string{folder}, "is a directory; name a file with a task a line"},
		{[]string{"-config", folder + "/none", "-"}, "policies file: open " + folder + "/none: no such file"},
		{[]string{"-config", file(t, "p.yaml", "policies: 7\n"), "-"}, "p.yaml:1: policies: "},
	} {
		got := enqueue(t, append([]string{"batch"}, c.args...)...)
		assert.Equal(t, program.Failed, got.code)
		assert.Contains(t, got.err, c.says)
	}
}

func TestBatchInterrupted(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	input, typist := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { _ = typist.Close() })
	go func() {
		for i := range 30 {
			_, _ = fmt.Fprintf(typist, `{"url":"http://h/%d"}`+"\n", i)
		}
		cancel() // and the pipe stays open: nothing but the signal ends this batch
	}()
	got := enqueueWith(t, ctx, nil, input, "batch", "-redis", srv.URI(), "-")
	assert.Equal(t, program.Failed, got.code)
	in := len(pending(t, srv, "default"))
	assert.Contains(t, got.out, fmt.Sprintf("%d task", in), "the summary is exact")
	assert.Contains(t, got.err, "interrupted")
	assert.Contains(t, got.err, "To go on, give it the input again with -from ")
}

func TestBatchRedisFailsHalfWay(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	synctest.Test(t, func(t *testing.T) {
		input, typist := io.Pipe()
		defer typist.Close()
		go func() {
			_, _ = io.WriteString(typist, strings.Repeat(`{"url":"http://h"}`+"\n", 2))
			synctest.Wait()
			_ = srv.Close()
			_, _ = io.WriteString(typist, `{"url":"http://h"}`+"\n")
		}()
		got := enqueueWith(t, t.Context(), nil, input, "batch", "-redis", srv.URI(), "-workers", "1", "-")
		assert.Equal(t, program.Failed, got.code)
		assert.Equal(t, "2 tasks enqueued\n", got.out)
		assert.Regexp(t, `stopped at line 3 after 2 tasks had gone in: .*\nTo go on, give it the input again with -from 3\n`, got.err)
	})
}

func TestBatchGoesOnFromALine(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	got := enqueue(t, "batch", "-redis", srv.URI(), "-from", "3", file(t, "tasks.ndjson", mixed))
	require.Equal(t, "2 tasks enqueued, 1 bad line\n", got.out)
}
