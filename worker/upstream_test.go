package worker_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/throttle/upstream"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// newHTTPTestServer is a testServer whose tasks are calls to an upstream, under a policy that heeds it.
func newHTTPTestServer(t *testing.T, server *throttletest.Server, p policy.Policy, answer http.HandlerFunc) (*testServer, string) {
	t.Helper()
	r := newTestServer(t, server, p)
	r.config.Policies.Routes = []policy.Route{{Task: httprequest.TaskType, Policy: "api"}}
	return r, serve(t, answer).URL
}

func serve(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server
}

// httpHandler makes calls, with connections that end with the test.
func httpHandler(t *testing.T) asynq.Handler {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	handler, err := httprequest.NewHandler(httprequest.Config{Transport: transport})
	require.NoError(t, err)
	return handler
}

func (r *testServer) call(url string, attributes map[string]string, options ...asynq.Option) {
	r.t.Helper()
	payload, err := httprequest.Payload{URL: url}.Encode()
	require.NoError(r.t, err)
	r.add(asynq.NewTaskWithHeaders(httprequest.TaskType, payload, attributes), options...)
}

// A refusal for one key closes that key, for its tasks on their last attempt, too, and
// leaves others alone; nothing is charged.
func TestRefusalClosesOneKey(t *testing.T) { scenario(refuseOneKey).onEachServer(t) }

func refuseOneKey(t *testing.T, server *throttletest.Server) time.Duration {
	limits := perSecond(1000, 100)
	limits[0].Per = "user"
	closes := map[string]time.Duration{"/ann": 30 * time.Minute, "/cat": time.Second}
	refused, served := map[string]time.Time{}, map[string]int{}
	var mu sync.Mutex
	r, url := newHTTPTestServer(t, server, policy.Policy{Limits: limits, Upstream: &policy.Upstream{}}, func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		who := req.URL.Path
		if closes[who] > 0 && refused[who].IsZero() {
			refused[who] = time.Now()
			w.Header().Set("Retry-After", fmt.Sprint(closes[who].Seconds()))
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		assert.GreaterOrEqual(t, time.Since(refused[who]), closes[who])
		served[who]++
	})
	r.serve(httpHandler(t).ProcessTask)
	isServed := func(user string) bool {
		mu.Lock()
		defer mu.Unlock()
		return served["/"+user] == 1
	}
	r.call(url+"/ann", map[string]string{"user": "ann"}, asynq.MaxRetry(0))
	r.eventually("it is put off", func() bool { return r.queue().Scheduled == 1 })
	r.call(url+"/ann", map[string]string{"user": "ann"})
	began := time.Now()
	r.call(url+"/bob", map[string]string{"user": "bob"})
	r.eventually("bob is served", func() bool { return isServed("bob") })
	took := time.Since(began)
	r.call(url+"/cat", map[string]string{"user": "cat"}, asynq.MaxRetry(0))
	r.eventually("cat is served, and ann is not", func() bool { return isServed("cat") && r.queue().Size == 2 })
	assert.Equal(t, 1, r.queue().Scheduled)
	assert.Equal(t, 1, r.queue().Retry)
	assert.Zero(t, r.queue().FailedTotal)
	assert.Zero(t, r.queue().Archived)
	return took
}

// A task that the upstream refuses again and again fails in the end, by a count of its
// own that deferrals do not forget.
func TestRefusalsOfOneTaskAreBounded(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: perSecond(1000, 100)})
	r.config.MaxRefusals = 1
	var calls atomic.Int64
	r.serve(func(context.Context, *asynq.Task) error {
		calls.Add(1)
		return &throttle.RateLimitedError{Status: "429", Heeded: true, Alone: true, RetryAfter: time.Millisecond}
	})
	r.enqueue(1, asynq.MaxRetry(1))
	r.eventually("a failure", func() bool { return r.queue().FailedTotal == 1 })
	assert.Equal(t, int64(2), calls.Load())
	tasks := r.retrying()
	require.Len(t, tasks, 1)
	assert.Equal(t, 1, tasks[0].Retried)
	assert.Contains(t, tasks[0].LastErr, "refused 2 times: rate-limited by the upstream: 429")
}

// A 403 of GitHub's is a refusal if nothing is left, and no reason to archive a task;
// what the upstream allows is told in metrics, and logged once.
func TestUpstreamIsReported(t *testing.T) {
	t.Parallel()
	quota, err := throttletest.NewUpstream(throttletest.UpstreamConfig{
		Quota: &throttletest.Quota{Limit: 5, Window: time.Second, Start: time.Unix(0, 0)},
	})
	require.NoError(t, err)
	quota.Spend("", 2)
	limits := []policy.Limit{{
		Name: "w", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 100, Period: time.Second},
	}}
	r, url := newHTTPTestServer(t, throttletest.Embedded(t), policy.Policy{
		Limits: limits, MaxWait: 5 * time.Second, Upstream: &policy.Upstream{API: policy.APIGitHub},
	}, func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		quota.ServeHTTP(answer, r)
		if answer.Code == http.StatusTooManyRequests {
			answer.Code = http.StatusForbidden // as GitHub does
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
	})
	metrics := prometheus.NewRegistry()
	core, logs := observer.New(zapcore.WarnLevel)
	r.config.Registerer, r.config.Logger, r.config.Concurrency = metrics, zap.New(core), 5
	r.serve(httpHandler(t).ProcessTask)
	for range 10 {
		r.call(url, nil)
	}
	r.eventually("all served", func() bool { return quota.Accepted() == 10 && r.queue().Size == 0 })
	assert.Zero(t, r.queue().FailedTotal+r.queue().Archived)
	told := totals(t, metrics)
	assert.EqualValues(t, 5, told["rampmeter_upstream_limit"])
	assert.GreaterOrEqual(t, told["rampmeter_upstream_readings_total"], 10.0)
	assert.Equal(t, 1, logs.FilterMessageSnippet("allows less").Len())
}

// A call whose task died without a word counts as made, and no more than that: the
// tasks after it go on.
func TestFailedCallsEndTheirFlight(t *testing.T) {
	t.Parallel()
	limits := perSecond(1000, 100)
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: limits, Upstream: &policy.Upstream{}})
	var runs atomic.Int64
	r.serve(func(ctx context.Context, _ *asynq.Task) error {
		runs.Add(1)
		reservation, _ := throttle.FromContext(ctx)
		if runs.Load() == 1 {
			_, err := reservation.Reconcile(ctx, throttle.Observation{Quotas: map[string]throttle.Reading{
				"rate": {Limit: 10, Remaining: 9, Reset: time.Hour, Window: time.Hour},
			}})
			return err
		}
		return errors.New("no answer")
	})
	r.enqueue(1)
	r.eventually("one run", func() bool { return r.queue().Processed == 1 })
	r.enqueue(20, asynq.MaxRetry(5))
	r.eventually("what was left is used", func() bool { return runs.Load() == 10 })
	d, err := r.limiter.Peek(t.Context(), throttle.Request{Policy: "api"})
	require.NoError(t, err)
	assert.Equal(t, "rate/upstream", d.HeldBy)
}

// A handler that makes several calls by an http.Client of its own just returns its
// errors: what is too far off defers the task, which goes on where it was. The first
// call is the one that the task was admitted for.
func TestHandlerWithTransport(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		const window = 2 * time.Second
		api, err := throttletest.NewUpstream(throttletest.UpstreamConfig{
			Quota: &throttletest.Quota{Limit: 10, Window: window, Start: time.Unix(0, 0)},
		})
		require.NoError(t, err)
		url := serve(t, api.ServeHTTP).URL
		r := newTestServer(t, server, policy.Policy{
			// Declared is twice of what the API allows.
			Limits: []policy.Limit{{
				Name: "calls", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 20, Period: window},
			}},
			MaxWait: 100 * time.Millisecond, Upstream: &policy.Upstream{API: policy.APIGitHub},
		})
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		client := &http.Client{Transport: &upstream.Transport{Limiter: r.limiter, Policy: "api", Base: base}}
		var pages [8]atomic.Int64 // that each task has fetched
		r.serve(func(ctx context.Context, task *asynq.Task) error {
			own := &pages[task.Payload()[0]]
			for own.Load() < 3 {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
				if err != nil {
					return err
				}
				response, err := client.Do(request)
				if err != nil {
					return err
				}
				_ = response.Body.Close()
				if response.StatusCode == http.StatusOK {
					own.Add(1)
				}
			}
			return nil
		})
		for i := range pages {
			r.add(asynq.NewTask("call", []byte{byte(i)}), asynq.MaxRetry(i%2))
		}
		r.eventually("all pages", func() bool { return api.Accepted() == 3*len(pages) && r.queue().Size == 0 })
		windows := map[time.Time]int{}
		for _, arrived := range api.Arrivals() {
			windows[arrived.Truncate(window)]++
		}
		assert.LessOrEqual(t, api.Over(), len(pages)*len(windows), "no more than were in flight")
		assert.Zero(t, r.queue().FailedTotal+r.queue().Archived)
		assert.Zero(t, r.reported.Load())
	})
}
