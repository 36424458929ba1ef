package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// running is a worker inside the test.
type running struct {
	redis, status string // addresses
	stop          context.CancelFunc
	ended         chan struct{}
	code          int // once it has ended
	log           *workerLog
}

// start runs a worker until it serves. Without a redis it is an embedded one.
func start(t *testing.T, redis string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	args = append(args, "-config", policiesFile(t), "-listen", "127.0.0.1:0", "-shutdown-timeout", "1s")
	if redis == "" {
		args = append(args, "-embedded")
	} else {
		args = append(args, "-redis", "redis://"+redis)
	}
	r := &running{redis: redis, log: newWorkerLog(t), stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.code = run(ctx, args, env{}.get, io.Discard, r.log)
	}()
	t.Cleanup(func() { r.end() })
	if redis == "" {
		uri, _ := r.log.await(1, "embedded Redis started, its data ends with this process")["redis"].(string)
		conn, err := worker.ParseRedisURI(uri)
		require.NoError(t, err)
		r.redis = conn.(asynq.RedisClientOpt).Addr
	}
	r.status, _ = r.log.await(1, "serving /healthz and /metrics")["address"].(string)
	return r
}

// end stops the worker and returns its exit code.
func (r *running) end() int {
	r.stop()
	<-r.ended
	return r.code
}

func enqueue(t *testing.T, redis string, payload httprequest.Payload, options ...asynq.Option) {
	t.Helper()
	_, err := producerOn(t, redis).HTTP(t.Context(), payload, nil, options...)
	require.NoError(t, err)
}

func TestWorkerFromStartToEnd(t *testing.T) {
	t.Parallel()
	called := make(chan *http.Request, 10)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r }))
	t.Cleanup(upstream.Close)
	r := start(t, "")

	status, body := get(t, "http://"+r.status+"/healthz")
	assert.Equal(t, http.StatusOK, status)
	assert.JSONEq(t, `{"status":"ok"}`, body)

	t.Run("an http:request is made", func(t *testing.T) {
		enqueue(t, r.redis, httprequest.Payload{Method: "POST", URL: upstream.URL + "/generated"})
		got := <-called
		assert.Equal(t, "/generated", got.URL.Path)
		assert.Regexp(t, `^[0-9a-f-]{36}$`, got.Header.Get("Idempotency-Key"), "the ID asynq gave the task")
	})
	t.Run("an ID chosen by hand is no idempotency key", func(t *testing.T) {
		enqueue(t, r.redis, httprequest.Payload{Method: "POST", URL: upstream.URL + "/named"}, asynq.TaskID("daily-report"))
		assert.NotContains(t, (<-called).Header, "Idempotency-Key")
	})

	_, metrics := get(t, "http://"+r.status+"/metrics")
	for _, want := range []string{`rampmeter_wait_seconds_count{policy="api"} 2`, "go_goroutines ", "process_open_fds "} {
		assert.Contains(t, metrics, "\n"+want)
	}
	assert.Equal(t, program.OK, r.end())
	lines, _ := r.log.lines()
	for _, line := range lines {
		assert.True(t, json.Valid([]byte(line)), line)
	}
}

func TestHealthFollowsRedis(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*throttletest.Proxy){
		"gone": (*throttletest.Proxy).Cut, "silent": (*throttletest.Proxy).Hold,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := throttletest.NewProxy(t, throttletest.Redis(t).Addr())
			r := start(t, redis.Addr())
			status, _ := get(t, "http://"+r.status+"/healthz")
			require.Equal(t, http.StatusOK, status)

			lose(redis)
			status, body := get(t, "http://"+r.status+"/healthz")
			assert.Equal(t, http.StatusServiceUnavailable, status)
			var health struct{ Status, Reason string }
			require.NoError(t, json.Unmarshal([]byte(body), &health))
			assert.Equal(t, "unavailable", health.Status)
			assert.Contains(t, health.Reason, "no answer from Redis at "+redis.Addr()+": ")

			redis.Cut()
			assert.Equal(t, program.OK, r.end())
		})
	}
}
