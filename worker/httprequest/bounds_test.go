package httprequest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// answer is what a call gets, in time on any machine.
type answer struct {
	status int
	body   io.Reader
}

func (a answer) RoundTrip(req *http.Request) (*http.Response, error) {
	body := a.body
	if body == nil { // one that never ends
		body = io.MultiReader(strings.NewReader("wait for it"), endless{req.Context()})
	}
	return &http.Response{
		StatusCode: a.status, Status: fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)), Body: io.NopCloser(body), Request: req,
	}, nil
}

// endless has nothing to read until its context ends.
type endless struct{ context.Context }

func (e endless) Read([]byte) (int, error) {
	<-e.Done()
	return 0, e.Err()
}

// zeros counts how many were read.
type zeros int

func (z *zeros) Read(p []byte) (int, error) {
	*z += zeros(len(p))
	return len(p), nil
}

func TestTimeoutBoundsHeadersAndBody(t *testing.T) {
	t.Parallel()
	cfg := httprequest.Config{Timeout: 100 * time.Millisecond}

	t.Run("no answer is retried", func(t *testing.T) {
		t.Parallel()
		server := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		err := call(t, cfg, httprequest.Payload{URL: server.URL})
		require.EqualError(t, err, "GET "+server.URL+": no answer within 100ms")
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("2xx is done at its status", func(t *testing.T) {
		t.Parallel()
		cfg := httprequest.Config{Timeout: cfg.Timeout, Transport: answer{status: 200}}
		require.NoError(t, call(t, cfg, httprequest.Payload{URL: "http://h"}))
	})
	t.Run("4xx quotes what came", func(t *testing.T) {
		t.Parallel()
		cfg := httprequest.Config{Timeout: cfg.Timeout, Transport: answer{status: 403}}
		err := call(t, cfg, httprequest.Payload{URL: "http://h"})
		require.ErrorIs(t, err, asynq.SkipRetry)
		require.ErrorContains(t, err, "403 Forbidden: wait for it")
	})
	t.Run("429 is passed on at once", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		h := handler(t, httprequest.Config{Timeout: time.Hour, Transport: answer{status: 429}})
		err := h.ProcessTask(ctx, callTask(t, httprequest.Payload{URL: "http://h"}))
		var limited *throttle.RateLimitedError
		require.ErrorAs(t, err, &limited)
		require.NoError(t, ctx.Err())
	})
}

func TestEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	err := handler(t, httprequest.Config{}).ProcessTask(ctx, callTask(t, httprequest.Payload{URL: server.URL}))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, asynq.SkipRetry)
}

func TestReadsNoMoreThanMaxBody(t *testing.T) {
	t.Parallel()
	var body zeros
	require.NoError(t, call(t, httprequest.Config{MaxBody: 100_000, Transport: answer{200, &body}}, httprequest.Payload{URL: "http://h"}))
	assert.EqualValues(t, 100_000, body)
}

func TestKeepsConnections(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 404, 429, 500} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			var connections atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = w.Write(make([]byte, 100_000))
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					connections.Add(1)
				}
			}
			server.Start()
			t.Cleanup(server.Close)

			h := handler(t, httprequest.Config{})
			for range 10 {
				_ = h.ProcessTask(t.Context(), callTask(t, httprequest.Payload{URL: server.URL}))
			}
			assert.EqualValues(t, 1, connections.Load())
		})
	}
}

// What is no answer, and what never ends, leaves no goroutine behind: see TestMain.
func TestLetsGoOfEndlessCalls(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stall" {
			_, _ = io.WriteString(w, "wait for it")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn) // until the caller hangs up
		_ = conn.Close()
	})
	upgrade := map[string]string{"Connection": "Upgrade", "Upgrade": "chat"}
	err := call(t, httprequest.Config{}, httprequest.Payload{URL: server.URL, Headers: upgrade})
	require.ErrorContains(t, err, "101 Switching Protocols: not an answer")
	_ = call(t, httprequest.Config{Timeout: 100 * time.Millisecond}, httprequest.Payload{URL: server.URL + "/stall"})
}
