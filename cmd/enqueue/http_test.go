package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		// Flags on both sides of the URL.
		got := enqueue(t, "http", "-redis", srv.URI(), "-queue", "calls", "-attr", "installation=42", "https://h/x?a=1&b=2",
			"-attr", "points=5", "-method", "POST", "-header", "Content-Type: text/plain", "-body", "hello",
			"-max-retry", "0", "-timeout", "30s", "-retention", "1h", "-id", "mine")
		require.Equal(t, result{program.OK, "1 task enqueued in queue \"calls\"\n", ""}, got)

		tasks := pending(t, srv, "calls")
		require.Len(t, tasks, 1)
		task := tasks[0]
		assert.Equal(t, "mine", task.ID)
		assert.Equal(t, httprequest.TaskType, task.Type)
		assert.Equal(t, map[string]string{"installation": "42", "points": "5"}, task.Headers)
		assert.Equal(t, 0, task.MaxRetry)
		assert.Equal(t, 30*time.Second, task.Timeout)
		assert.Equal(t, time.Hour, task.Retention)
		payload, err := httprequest.Decode(task.Payload)
		require.NoError(t, err)
		assert.Equal(t, httprequest.Payload{Method: "POST", URL: "https://h/x?a=1&b=2",
			Headers: map[string]string{"Content-Type": "text/plain"}, Body: "hello"}, payload)

		got = enqueue(t, "http", "-redis", srv.URI(), "-queue", "calls", "-id", "mine", "https://h/y")
		assert.Equal(t, result{program.OK, "task \"mine\" is in queue \"calls\" already, nothing was enqueued\n", ""}, got)
	})
}

func TestHTTPManyWithEstimate(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	config := file(t, "policies.yaml", policiesFile)
	got := enqueue(t, "http", "-redis", srv.URI(), "-config", config, "-count", "70", "-attr", "installation=42", "http://h")
	assert.Equal(t, result{program.OK, "70 tasks enqueued in queue \"default\"\n" +
		"the quota makes them take about 6s: limit all of policy github is the narrowest\n", ""}, got)
	assert.Len(t, pending(t, srv, "default"), 70)

	got = enqueue(t, "http", "-redis", srv.URI(), "-config", config, "-count", "70", "-attr", "installation=42", "-attr", "points=3", "http://h")
	assert.Contains(t, got.out, "the quota makes them take about 1h6m: limit hourly of policy github for installation=42 is the narrowest")

	got = enqueue(t, "http", "-redis", srv.URI(), "-config", config, "-attr", "installation=42", "http://h")
	assert.Contains(t, got.out, "they fit into the quota")

	got = enqueue(t, "http", "-redis", srv.URI(), "-config", config, "-queue", "other", "http://h")
	assert.Equal(t, program.Failed, got.code)
	assert.Equal(t, `enqueue http: nothing was enqueued: attribute "installation" is missing: `+
		`limit "hourly" of policy "github" needs it (set it as a task header)`+"\n", got.err)
	assert.Empty(t, pending(t, srv, "other"))
}

func TestHTTPInterrupted(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := enqueueWith(t, ctx, nil, strings.NewReader(""), "http", "-redis", srv.URI(), "http://h")
	assert.Equal(t, program.Failed, got.code)
	assert.Empty(t, pending(t, srv, "default"))
}

func TestEnvironmentStandsIn(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	environment := map[string]string{
		"RAMPMETER_REDIS":  srv.URI(),
		"RAMPMETER_QUEUE":  "from-environment",
		"RAMPMETER_ATTR":   "a=1\nb=2, too\n",
		"RAMPMETER_COUNT":  "2",
		"RAMPMETER_METHOD": "",
	}
	got := enqueueWith(t, t.Context(), environment, nil, "http", "http://h", "-count", "3")
	require.Equal(t, program.OK, got.code, got.err)
	tasks := pending(t, srv, "from-environment")
	require.Len(t, tasks, 3, "a flag wins")
	assert.Equal(t, map[string]string{"a": "1", "b": "2, too"}, tasks[0].Headers)

	environment["RAMPMETER_COUNT"], environment["RAMPMETER_ATTR"] = "many", "a"
	got = enqueueWith(t, t.Context(), environment, nil, "http", "http://h")
	assert.Equal(t, program.Usage, got.code)
	assert.Contains(t, got.err, `RAMPMETER_COUNT="many": `)
	assert.Contains(t, got.err, `RAMPMETER_ATTR="a": write it as NAME=VALUE`)
}

func TestAfterTwoDashesNothingIsAFlag(t *testing.T) {
	t.Parallel()
	got := enqueue(t, "http", "--", "-not-a-flag")
	assert.Equal(t, program.Usage, got.code)
	assert.Contains(t, got.err, `url "-not-a-flag" must start with http`)
}

func TestInAbout(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		1234 * time.Millisecond:         "1.23s",
		59 * time.Second:                "59s",
		12345 * time.Millisecond:        "12s",
		90 * time.Second:                "1m30s",
		100 * time.Minute:               "1h40m",
		50 * time.Hour:                  "2d2h",
		999 * time.Microsecond:          "0s",
		9999 * time.Millisecond:         "10s",
		24*time.Hour - time.Millisecond: "23h59m",
	} {
		assert.Equal(t, want, inAbout(d))
	}
}
