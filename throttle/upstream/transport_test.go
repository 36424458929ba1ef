package upstream_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// testClient is a limiter for the policy "api", whose clock stands still, and a client that
// keeps to it.
type testClient struct {
	*testing.T
	limiter   *throttle.Limiter
	transport *upstream.Transport
	client    *http.Client
}

func newTestClient(t *testing.T, p policy.Policy) *testClient {
	t.Helper()
	p.Name = "api"
	server, _ := throttletest.EmbeddedAt(t, time.Now())
	limiter, err := throttle.New(server.Client(), &policy.Config{Policies: []policy.Policy{p}})
	require.NoError(t, err)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	transport := &upstream.Transport{Limiter: limiter, Policy: "api", Base: base}
	return &testClient{t, limiter, transport, &http.Client{Transport: transport}}
}

func (r *testClient) serve(handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	r.Cleanup(server.Close)
	return server.URL
}

// get reads the whole of an answer.
func (r *testClient) get(ctx context.Context, url string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(r, err)
	response, err := r.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// remaining is what a limit has left for a request with these attributes.
func (r *testClient) remaining(limit string, attributes map[string]string) int64 {
	d, err := r.limiter.Peek(r.Context(), throttle.Request{Policy: "api", Attributes: attributes})
	require.NoError(r, err)
	for _, l := range d.Limits {
		if l.Name == limit {
			return l.Remaining
		}
	}
	return -1
}

func hourly(count int64) policy.Limit {
	return policy.Limit{
		Name: "hourly", Algorithm: policy.FixedWindow, Anchor: policy.AnchorFirst,
		Rate: policy.Rate{Count: count, Period: time.Hour},
	}
}

func done(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }

// Every call is reserved for; what is too far off is not made, and says so in an error
// that defers a task.
func TestTransportReservesEachCall(t *testing.T) {
	t.Parallel()
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{hourly(2)}})
	url := r.serve(done)
	for range 2 {
		_, text, err := r.get(t.Context(), url)
		require.NoError(t, err)
		assert.Equal(t, "done", text)
	}
	body := &closable{Reader: strings.NewReader("x")}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	_, err = r.client.Do(request) //nolint:bodyclose // there is no response
	throttled := (*throttle.ThrottledError)(nil)
	require.ErrorAs(t, err, &throttled)
	assert.Equal(t, "hourly", throttled.HeldBy)
	assert.Equal(t, time.Hour, throttled.RetryAfter)
	assert.True(t, body.closed, "as a RoundTripper must")
}

type closable struct {
	io.Reader
	closed bool
}

func (c *closable) Close() error { c.closed = true; return nil }

// A call whose slot is near waits for it, and no longer than its context.
func TestTransportWaits(t *testing.T) {
	t.Parallel()
	limit := policy.Limit{Name: "b", Algorithm: policy.TokenBucket, Burst: 1, Rate: policy.Rate{Count: 20, Period: time.Second}}
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{limit}})
	url := r.serve(done)
	began := time.Now()
	for range 2 {
		_, _, err := r.get(t.Context(), url)
		require.NoError(t, err)
	}
	assert.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
	require.NoError(t, r.limiter.Freeze(t.Context(), "api", time.Hour))
	r.transport.MaxWait = 2 * time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err := r.get(ctx, url)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	r.transport.MaxWait = -1
	_, _, err = r.get(t.Context(), url)
	require.ErrorAs(t, err, new(*throttle.ThrottledError), "held by nobody")
}

// Whose count a call goes to, and what it costs, is in its context or its request.
func TestTransportAttributes(t *testing.T) {
	t.Parallel()
	limit := hourly(10)
	limit.Per, limit.Cost = "user", "points"
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{limit}})
	r.transport.Attributes = func(request *http.Request) map[string]string {
		return map[string]string{"user": request.URL.Query().Get("user"), "points": "2"}
	}
	url := r.serve(done)
	_, _, err := r.get(t.Context(), url+"?user=ann")
	require.NoError(t, err)
	ctx := upstream.WithAttributes(t.Context(), map[string]string{"user": "bob"})
	_, _, err = r.get(upstream.WithAttributes(ctx, map[string]string{"points": "7"}), url)
	require.NoError(t, err)
	assert.Equal(t, int64(8), r.remaining("hourly", map[string]string{"user": "ann"}))
	assert.Equal(t, int64(3), r.remaining("hourly", map[string]string{"user": "bob"}))
	_, _, err = r.get(t.Context(), url)
	require.ErrorAs(t, err, new(*policy.AttributeError))
}

// In an asynq handler the task's own reservation serves for the first of its calls
// that asks for the same, and for no other.
func TestTransportUsesTheTasksReservation(t *testing.T) {
	t.Parallel()
	limit := hourly(10)
	limit.Per = "user"
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{limit}})
	url := r.serve(done)
	ann := map[string]string{"user": "ann"}
	task, err := r.limiter.Reserve(t.Context(), throttle.Request{Policy: "api", Attributes: ann, TaskID: "1"})
	require.NoError(t, err)
	ctx := throttle.NewContext(t.Context(), task)
	_, _, err = r.get(upstream.WithAttributes(ctx, map[string]string{"user": "bob"}), url)
	require.NoError(t, err)
	assert.Equal(t, int64(9), r.remaining("hourly", map[string]string{"user": "bob"}))
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() {
			_, _, err := r.get(ctx, url)
			assert.NoError(t, err)
		})
	}
	calls.Wait()
	assert.Equal(t, int64(7), r.remaining("hourly", ann))
}

// What a response says is heeded, and the response is the caller's as it came.
func TestTransportHeeds(t *testing.T) {
	t.Parallel()
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{hourly(100)}, Upstream: &policy.Upstream{}})
	var reports []upstream.Report
	r.transport.Observe = func(report upstream.Report) { reports = append(reports, report) }
	status := http.StatusOK
	url := r.serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "10")
		w.Header().Set("X-RateLimit-Remaining", "4")
		w.Header().Set("X-RateLimit-Reset", "600")
		if status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "5")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "body")
	})
	_, _, err := r.get(t.Context(), url)
	require.NoError(t, err)
	assert.Equal(t, int64(4), r.remaining("hourly/upstream", nil))
	require.Len(t, reports, 1)
	assert.Equal(t, int64(10), reports[0].Heard.Quotas["hourly"].Limit)

	status = http.StatusTooManyRequests
	got, text, err := r.get(t.Context(), url)
	require.NoError(t, err)
	assert.Equal(t, "429 body", http.StatusText(got)[:0]+"429 "+text)
	_, _, err = r.get(t.Context(), url)
	throttled := (*throttle.ThrottledError)(nil)
	require.ErrorAs(t, err, &throttled)
	assert.Equal(t, "hourly/upstream", throttled.HeldBy)
	assert.Equal(t, 5*time.Second, throttled.RetryAfter)
	limited := (*throttle.RateLimitedError)(nil)
	require.ErrorAs(t, reports[1].RateLimited("429"), &limited)
	assert.True(t, limited.Heeded)
}

// A refusal closes what it speaks of, and that alone.
func TestRefusalClosesWhatItSpeaksOf(t *testing.T) {
	t.Parallel()
	limit := hourly(100)
	limit.Per = "user"
	for name, test := range map[string]struct {
		api          policy.API
		status       int
		header       string
		ann, bob     string // who holds them afterwards
		alone, slows bool
	}{
		"429":            {status: 429, header: "Retry-After: 30", ann: "hourly/upstream"},
		"503":            {status: 503, header: "Retry-After: 30", ann: "freeze", bob: "freeze"},
		"503 alone":      {status: 503},
		"discord global": {api: policy.APIDiscord, status: 429, header: "Retry-After: 9\nX-RateLimit-Global: true", ann: "freeze", bob: "freeze"},
		"stripe lock":    {api: policy.APIStripe, status: 429, alone: true},
		"stripe busy":    {api: policy.APIStripe, status: 429, header: "Stripe-Rate-Limited-Reason: global-concurrency", alone: true},
		"stripe rate":    {api: policy.APIStripe, status: 429, header: "Stripe-Rate-Limited-Reason: global-rate", ann: "hourly/pace", slows: true},
		"another quota": {api: policy.APIZendesk, status: 429,
			header: "zendesk-ratelimit-tickets-index: total=100; remaining=0; resets=38", alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestClient(t, policy.Policy{Limits: []policy.Limit{limit}, MaxWait: -1, Upstream: &policy.Upstream{API: test.api}})
			url := r.serve(func(w http.ResponseWriter, _ *http.Request) {
				for line := range strings.Lines(test.header) {
					name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
					w.Header().Set(name, value)
				}
				w.WriteHeader(test.status)
			})
			var report upstream.Report
			r.transport.Observe = func(got upstream.Report) { report = got }
			ann := upstream.WithAttributes(t.Context(), map[string]string{"user": "ann"})
			_, _, err := r.get(ann, url)
			require.NoError(t, err)
			assert.Equal(t, test.slows, report.Heard.SlowedDown)
			if limited := (*throttle.RateLimitedError)(nil); errors.As(report.RateLimited(""), &limited) {
				assert.Equal(t, test.alone, limited.Alone)
			}
			if test.slows { // the next call takes the first token of the pace
				_, _, err := r.get(ann, url)
				require.NoError(t, err)
			}
			for user, heldBy := range map[string]string{"ann": test.ann, "bob": test.bob} {
				d, err := r.limiter.Peek(t.Context(), throttle.Request{Policy: "api", Attributes: map[string]string{"user": user}})
				require.NoError(t, err)
				assert.Equal(t, heldBy, d.HeldBy, user)
			}
		})
	}
}

// A slot of a concurrency limit ends with the body; a call that was never sent gives
// back what it took, and one that failed counts.
func TestTransportGivesBack(t *testing.T) {
	t.Parallel()
	slots := policy.Limit{Name: "at-once", Algorithm: policy.Concurrency, Slots: 1}
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{hourly(10), slots}, MaxWait: -1})
	url := r.serve(done)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := r.client.Do(request)
	require.NoError(t, err)
	_, _, err = r.get(t.Context(), url)
	require.ErrorAs(t, err, new(*throttle.ThrottledError), "the slot is taken")
	require.NoError(t, response.Body.Close())
	require.NoError(t, response.Body.Close(), "twice is once")
	_, _, err = r.get(t.Context(), url)
	require.NoError(t, err)
	assert.Equal(t, int64(8), r.remaining("hourly", nil))

	_, _, err = r.get(t.Context(), "http://127.0.0.1:1") // a port that no server is ever given
	require.Error(t, err)
	assert.Equal(t, int64(8), r.remaining("hourly", nil), "nothing was sent")
	broken := r.serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, _, err = r.get(t.Context(), broken)
	require.Error(t, err)
	assert.Equal(t, int64(7), r.remaining("hourly", nil))
	assert.Equal(t, int64(1), r.remaining("at-once", nil))
}

// No byte of a body is read before the caller does.
func TestBodiesAreNotReadEarly(t *testing.T) {
	t.Parallel()
	r := newTestClient(t, policy.Policy{Limits: []policy.Limit{hourly(10)}, Upstream: &policy.Upstream{}})
	r.transport.Costs = upstream.TokenUsage("tokens")
	goOn := make(chan struct{})
	url := r.serve(func(w http.ResponseWriter, req *http.Request) {
		w.(http.Flusher).Flush()
		select {
		case <-goOn:
			_, _ = io.WriteString(w, "late")
		case <-req.Context().Done():
		}
	})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := r.client.Do(request)
	require.NoError(t, err, "there are headers, and that is enough")
	defer response.Body.Close()
	close(goOn)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	assert.Equal(t, "late", string(text))
}

// What a call really cost is told by its body, once that was read.
func TestCostsKnownAfterwards(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		costs func([]byte) (upstream.Usage, bool)
		body  string
		left  int64 // of 1000, with an estimate of 100
		told  int64
	}{
		"shopify": {upstream.ShopifyGraphQL("points"), `{"data":{},"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":46,
			"throttleStatus":{"maximumAvailable":1000.0,"currentlyAvailable":500,"restoreRate":50.0}}}}`, 954, 500},
		"shopify, throttled": {upstream.ShopifyGraphQL("points"), `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],
			"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":null,
			"throttleStatus":{"maximumAvailable":1000.0,"currentlyAvailable":10,"restoreRate":50.0}}}}`, 1000, 10},
		"openai":    {upstream.TokenUsage("points"), `{"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}`, 971, -1},
		"anthropic": {upstream.TokenUsage("points"), `{"usage":{"input_tokens":200,"output_tokens":503}}`, 297, -1},
		"none":      {upstream.TokenUsage("points"), `{}`, 900, -1},
		"no JSON":   {upstream.ShopifyGraphQL("points"), `oops`, 900, -1},
		"too long":  {upstream.TokenUsage("points"), strings.Repeat(" ", 1<<20) + `{"usage":{"total_tokens":29}}`, 900, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := hourly(1000)
			limit.Cost = "points"
			r := newTestClient(t, policy.Policy{Limits: []policy.Limit{limit}, Upstream: &policy.Upstream{API: policy.APIShopify}})
			r.transport.Costs = test.costs
			url := r.serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.body) })
			ctx := upstream.WithAttributes(t.Context(), map[string]string{"points": "100"})
			_, text, err := r.get(ctx, url)
			require.NoError(t, err)
			assert.Equal(t, test.body, text)
			assert.Equal(t, test.left, r.remaining("hourly", nil))
			assert.Equal(t, test.told, r.remaining("hourly/upstream", nil))
		})
	}
}
