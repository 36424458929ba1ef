package main

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestScheduleEnqueuesUntilItIsStopped(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		path := file(t, "schedule.yaml", `schedule: [{name: beat, cron: "* * * * * *", url: "http://h"}]`)
		ctx, cancel := context.WithCancel(t.Context())
		logs, logged := io.Pipe()
		ended := make(chan int, 2)
		for range 2 {
			go func() {
				ended <- run(ctx, []string{"schedule", path, "-redis", srv.URI()}, func(string) string { return "" }, nil, io.Discard, logged)
			}()
		}
		var text strings.Builder
		part := make([]byte, 4096)
		for strings.Count(text.String(), `"msg":"enqueued"`) < 2 {
			n, err := logs.Read(part)
			require.NoError(t, err)
			text.Write(part[:n])
		}
		cancel()
		go func() { _, _ = io.Copy(io.Discard, logs) }()
		assert.Equal(t, program.OK, <-ended)
		assert.Equal(t, program.OK, <-ended)
		require.NoError(t, logged.Close())

		ids := map[string]bool{}
		for _, task := range pending(t, srv, "default") {
			assert.Equal(t, "http:request", task.Type)
			ids[task.ID] = true
		}
		assert.GreaterOrEqual(t, len(ids), 2)
		assert.Contains(t, text.String(), `"schedule":"beat"`)
	})
}

// A tick whose task would have to wait puts it into line.
func TestSchedulePutsTasksIntoLine(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	config := file(t, "policies.yaml", policiesFile)
	require.Equal(t, program.OK, enqueue(t, "freeze", "-redis", srv.URI(), "-config", config, "github", "1h").code)
	path := file(t, "schedule.yaml", `schedule: [{name: beat, cron: "* * * * * *", url: "http://h", attributes: {installation: "7", points: "1"}}]`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		args := []string{"schedule", path, "-redis", srv.URI(), "-config", config}
		ended <- run(ctx, args, func(string) string { return "" }, nil, io.Discard, io.Discard)
	}()
	require.Eventually(t, func() bool {
		return len(srv.Client().Keys(ctx, "rm:{github}/line*/row:1:7,7:default,").Val()) == 1
	}, patience, 10*time.Millisecond)
	cancel()
	assert.Equal(t, program.OK, <-ended)
	assert.Empty(t, pending(t, srv, "default"))
}

func TestScheduleCheck(t *testing.T) {
	t.Parallel()
	path := file(t, "schedule.yaml", `
schedule:
  - {name: new-year, cron: "0 0 1 1 *", timezone: Europe/Berlin, url: "http://h"}
  - {name: sync, cron: "*/10 * * * * *", type: crm:sync}
`)
	got := enqueue(t, "schedule", "-check", path, "-redis", "redis://127.0.0.1:1")
	assert.Equal(t, program.OK, got.code, got.err)
	assert.Regexp(t, `^NAME +CRON +NEXT +IN +TASK
new-year +0 0 1 1 \* +\d{4}-12-31T23:00:00Z +\S+ +http:request
sync +\*/10 \* \* \* \* \* +\S+0Z +\S+ +crm:sync
$`, got.out)
}

func TestScheduleBadFile(t *testing.T) {
	t.Parallel()
	got := enqueue(t, "schedule", file(t, "schedule.yaml", "schedule:\n  - {name: a b, cron: x, type: t}\n  - {cron: '* * * * *'}\n"))
	assert.Equal(t, program.Failed, got.code)
	assert.Contains(t, got.err, `schedule.yaml:2: schedule[0].name: "a b" may have letters`)
	assert.Contains(t, got.err, "schedule.yaml:2: schedule[0].cron: ")
	assert.Contains(t, got.err, "schedule.yaml:3: schedule[1].name: missing")
	assert.Contains(t, got.err, "schedule.yaml:3: schedule[1].type: missing")

	got = enqueue(t, "schedule", t.TempDir()+"/none.yaml")
	assert.Equal(t, program.Failed, got.code)
	assert.Contains(t, got.err, "schedule file: open ")
}
