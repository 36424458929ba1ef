package httprequest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// patience is how long to wait for what must happen; it costs nothing when all is well.
const patience = 100 * time.Second

// call runs one http:request task, with connections that end with the test.
func call(t *testing.T, cfg httprequest.Config, p httprequest.Payload) error {
	t.Helper()
	return handler(t, cfg).ProcessTask(t.Context(), callTask(t, p))
}

// callTask is a task that makes a call.
func callTask(t *testing.T, p httprequest.Payload) *asynq.Task {
	t.Helper()
	payload, err := p.Encode()
	require.NoError(t, err)
	return asynq.NewTask(httprequest.TaskType, payload)
}

func handler(t *testing.T, cfg httprequest.Config) asynq.Handler {
	t.Helper()
	if cfg.Transport == nil {
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)
		cfg.Transport = transport
	}
	h, err := httprequest.NewHandler(cfg)
	require.NoError(t, err)
	return h
}

func serve(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server
}

// unanswered is a server that must not be called.
func unanswered(t *testing.T) *httptest.Server {
	return serve(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s was called", r.Host)
	})
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	type headers map[string]string
	tests := map[string]struct {
		status  int
		headers headers
		body    string

		limited  time.Duration // of a RateLimitedError
		archived bool
		message  string // $URL stands for the server's
	}{
		"200":               {status: 200, body: "hello"},
		"204":               {status: 204},
		"299 with anything": {status: 299, headers: headers{"Retry-After": "5", "Location": "/elsewhere"}},

		"429 alone":               {status: 429, limited: time.Second},
		"429 with seconds":        {status: 429, headers: headers{"Retry-After": "7"}, limited: 7 * time.Second},
		"429 with a fraction":     {status: 429, headers: headers{"Retry-After": "2.5"}, limited: 2500 * time.Millisecond},
		"429 for too long":        {status: 429, headers: headers{"Retry-After": "86400"}, limited: time.Hour},
		"503 with Retry-After":    {status: 503, headers: headers{"Retry-After": "3"}, limited: 3 * time.Second},
		"503 with senseless time": {status: 503, headers: headers{"Retry-After": "soon"}, limited: time.Second},
		"date counts from Date": {status: 429, headers: headers{
			"Date":        "Fri, 02 Jan 1970 00:00:00 GMT",
			"Retry-After": "Fri, 02 Jan 1970 00:00:09 GMT",
		}, limited: 9 * time.Second},

		"503 alone": {status: 503, message: "GET $URL/path: 503 Service Unavailable"},
		"500 with a body": {status: 500, body: "  out\r\n\tof \x1b[31mcheese\x00 ",
			message: "GET $URL/path: 500 Internal Server Error: out of [31mcheese"},
		"599": {status: 599, message: "GET $URL/path: 599 status code 599"},

		"400 with a body": {status: 400, body: "{\n  \"error\": \"no such field\"\n}\n", archived: true,
			message: `GET $URL/path: 400 Bad Request: { "error": "no such field" }: skip retry for the task`},
		"404 without one": {status: 404, archived: true, message: "GET $URL/path: 404 Not Found: skip retry for the task"},
		"body cut at 200 bytes": {status: 422, body: strings.Repeat("é", 150), archived: true,
			message: "GET $URL/path: 422 Unprocessable Entity: " + strings.Repeat("é", 100) + "...: skip retry for the task"},
		"body cut between runes": {status: 422, body: "x" + strings.Repeat("é", 150), archived: true,
			message: "GET $URL/path: 422 Unprocessable Entity: x" + strings.Repeat("é", 99) + "...: skip retry for the task"},
		"body that is no text": {status: 400, body: "\xff\xfe!", archived: true,
			message: "GET $URL/path: 400 Bad Request: \uFFFD!: skip retry for the task"},
		"302 to nowhere": {status: 302, archived: true, message: "GET $URL/path: 302 Found: skip retry for the task"},
		"304":            {status: 304, archived: true, message: "GET $URL/path: 304 Not Modified: skip retry for the task"},
		"302 to what is no URL": {status: 302, headers: headers{"Location": "http://[::1"}, archived: true,
			message: "GET $URL/path: 302 Found: skip retry for the task"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				for name, value := range test.headers {
					w.Header().Set(name, value)
				}
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			})

			err := call(t, httprequest.Config{}, httprequest.Payload{URL: server.URL + "/path"})

			if test.limited == 0 && test.message == "" {
				require.NoError(t, err)
				return
			}
			if test.limited > 0 {
				var limited *throttle.RateLimitedError
				require.ErrorAs(t, err, &limited)
				assert.Equal(t, test.limited, limited.RetryAfter)
				assert.Equal(t, fmt.Sprintf("%d %s", test.status, http.StatusText(test.status)), limited.Status)
				return
			}
			require.EqualError(t, err, strings.ReplaceAll(test.message, "$URL", server.URL))
			assert.Equal(t, test.archived, errors.Is(err, asynq.SkipRetry))
		})
	}
}

func TestSendsThePayload(t *testing.T) {
	t.Parallel()
	type seen struct {
		method, uri, host, body string
		header                  http.Header
	}
	got := make(chan seen, 1)
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, r.Host, string(body), r.Header}
	})

	require.NoError(t, call(t, httprequest.Config{}, httprequest.Payload{
		Method:  "PATCH",
		URL:     server.URL + "/things?id=4",
		Headers: map[string]string{"x-api-key": "k", "Host": "things.example", "Idempotency-Key": "mine"},
		Body:    `{"a":1}`,
	}))
	s := <-got
	assert.Equal(t, "PATCH /things?id=4 things.example", s.method+" "+s.uri+" "+s.host)
	assert.JSONEq(t, `{"a":1}`, s.body)
	assert.Equal(t, "k", s.header.Get("X-Api-Key"))
	assert.Equal(t, "mine", s.header.Get("Idempotency-Key"))
	assert.Equal(t, "rampmeter", s.header.Get("User-Agent"))

	require.NoError(t, call(t, httprequest.Config{}, httprequest.Payload{
		URL: server.URL, Headers: map[string]string{"User-Agent": "shop/2"},
	}))
	s = <-got
	assert.Equal(t, "GET / shop/2", s.method+" "+s.uri+" "+s.header.Get("User-Agent"))
	assert.NotContains(t, s.header, "Idempotency-Key")
}

func TestArchivesBadPayload(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]string{
		"no JSON":      `GET https://example.com`,
		"no URL":       `{}`,
		"wrong scheme": `{"url":"file:///etc/passwd"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := handler(t, httprequest.Config{}).ProcessTask(t.Context(), asynq.NewTask(httprequest.TaskType, []byte(payload)))
			require.ErrorIs(t, err, asynq.SkipRetry)
			require.ErrorIs(t, err, httprequest.ErrInvalid)
		})
	}
}

func TestNetworkErrorIsRetried(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:1" // a port that no server is ever given
	err := call(t, httprequest.Config{}, httprequest.Payload{URL: "http://me:secret@" + address + "/x?token=secret"})
	require.ErrorContains(t, err, "GET http://"+address+"/x?...: dial tcp")
	assert.NotContains(t, err.Error(), "secret")
	require.NotErrorIs(t, err, asynq.SkipRetry)
}

func TestReasonHidesSecrets(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/gone?token=secret", http.StatusFound)
			return
		}
		w.WriteHeader(http.StatusGone)
	})
	address := strings.TrimPrefix(server.URL, "http://")
	err := call(t, httprequest.Config{}, httprequest.Payload{URL: "http://me:secret@" + address + "/?token=secret#secret"})
	require.EqualError(t, err, "GET "+server.URL+"/?... (redirected to "+server.URL+"/gone?...): 410 Gone: skip retry for the task")
}

func TestConfigProblemsAreAllNamed(t *testing.T) {
	t.Parallel()
	_, err := httprequest.NewHandler(httprequest.Config{
		AllowHosts:        []string{"https://example.com", "*", "ok.example", "a.*.example", "x:99999", "", "a b"},
		Timeout:           -time.Second,
		MaxBody:           -1,
		DefaultRetryAfter: 2 * time.Minute,
		MaxRetryAfter:     time.Minute,
	})
	for _, want := range []string{
		"Timeout of -1s", "MaxBody of -1", "DefaultRetryAfter of 2m0s", "at most MaxRetryAfter (1m0s)",
		`"https://example.com" is more than a host`, `"*" is every host`, `"a.*.example" has a * in the wrong place`,
		`"x:99999" has the port "99999"`, `"" names no host`, `"a b" holds a separator`,
	} {
		require.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "ok.example")
}
