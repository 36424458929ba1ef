package httprequest_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// redirectTo answers every call with that status and Location.
func redirectTo(t *testing.T, status int, location string) *httptest.Server {
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", location)
		w.WriteHeader(status)
	})
}

func TestFollowsRedirects(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status     int
		wantMethod string
		wantBody   int64
	}{
		{http.StatusMovedPermanently, "GET", 0},
		{http.StatusSeeOther, "GET", 0},
		{http.StatusTemporaryRedirect, "POST", 4},
		{http.StatusPermanentRedirect, "POST", 4},
	} {
		t.Run(http.StatusText(test.status), func(t *testing.T) {
			t.Parallel()
			got := make(chan *http.Request, 1)
			end := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- r })
			start := redirectTo(t, test.status, end.URL)
			require.NoError(t, call(t, httprequest.Config{}, httprequest.Payload{Method: "POST", URL: start.URL, Body: "body"}))
			r := <-got
			assert.Equal(t, test.wantMethod, r.Method)
			assert.Equal(t, test.wantBody, r.ContentLength)
		})
	}
}

func TestRedirectLoopIsArchived(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ max, calls int }{
		"default":     {0, 6},
		"two":         {2, 3},
		"none at all": {-1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := make(chan struct{}, 100)
			server := serve(t, func(w http.ResponseWriter, r *http.Request) {
				calls <- struct{}{}
				http.Redirect(w, r, "/loop?token=secret", http.StatusFound)
			})
			err := call(t, httprequest.Config{MaxRedirects: test.max}, httprequest.Payload{URL: server.URL + "/loop"})
			require.ErrorIs(t, err, asynq.SkipRetry)
			require.ErrorContains(t, err, "302 Found: redirect to "+server.URL+"/loop?... not followed: it would be number ")
			assert.Len(t, calls, test.calls)
		})
	}
}

func TestAllowHosts(t *testing.T) {
	t.Parallel()
	open := serve(t, func(http.ResponseWriter, *http.Request) {})
	port := portOf(t, open.URL)
	tests := map[string]struct {
		allow []string
		url   string
		host  string // the Host header
		ok    bool
	}{
		"empty allows all":        {nil, "http://127.0.0.1:" + port, "", true},
		"host on any port":        {[]string{"127.0.0.1"}, "http://127.0.0.1:" + port, "", true},
		"host on its port":        {[]string{"127.0.0.1:" + port}, "http://127.0.0.1:" + port, "", true},
		"host on another port":    {[]string{"127.0.0.1:1"}, "http://127.0.0.1:" + port, "", false},
		"case, blanks and dots":   {[]string{" LocalHost. "}, "http://LOCALHOST:" + port, "", true},
		"another host":            {[]string{"localhost"}, "http://127.0.0.1:" + port, "", false},
		"default port":            {[]string{"api.example:80"}, "https://api.example/", "", false},
		"IPv6 without brackets":   {[]string{"::1"}, "http://127.0.0.1:" + port, "", false},
		"end of a name":           {[]string{"example.com"}, "http://badexample.com", "", false},
		"below, but the host":     {[]string{"*.example.com"}, "http://example.com", "", false},
		"below, but glued":        {[]string{"*.example.com"}, "http://badexample.com", "", false},
		"host in user part":       {[]string{"example.com"}, "http://example.com@127.0.0.1:" + port, "", false},
		"Host header elsewhere":   {[]string{"127.0.0.1"}, "http://127.0.0.1:" + port, "internal.example", false},
		"Host header allowed too": {[]string{"127.0.0.1", "*.example"}, "http://127.0.0.1:" + port, "api.example", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := httprequest.Payload{URL: test.url}
			if test.host != "" {
				p.Headers = map[string]string{"Host": test.host}
			}
			err := call(t, httprequest.Config{AllowHosts: test.allow}, p)
			if test.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, asynq.SkipRetry)
			require.ErrorContains(t, err, "is not allowed; allowed are "+strings.Join(test.allow, ", "))
		})
	}
}

func TestRedirectToForbiddenPlaceIsArchived(t *testing.T) {
	t.Parallel()
	forbidden := unanswered(t)
	for name, test := range map[string]struct{ location, reason string }{
		"host":   {forbidden.URL + "/?token=secret", "redirect to " + forbidden.URL + "/?... not followed: host "},
		"scheme": {"ftp://localhost/x", `redirect to ftp://localhost/x not followed: scheme "ftp" is not http or https`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := redirectTo(t, http.StatusTemporaryRedirect, test.location)
			err := call(t, httprequest.Config{AllowHosts: []string{"127.0.0.1:" + portOf(t, start.URL)}}, httprequest.Payload{URL: start.URL})
			require.ErrorIs(t, err, asynq.SkipRetry)
			require.ErrorContains(t, err, "307 Temporary Redirect: "+test.reason)
			assert.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestPrivateHeadersStayWithTheirHost(t *testing.T) {
	t.Parallel()
	payload := httprequest.Payload{Method: "POST", Body: "x", Headers: map[string]string{
		"Authorization": "secret", "X-Api-Key": "secret", "Cookie": "a=secret", "PRIVATE-TOKEN": "secret",
		"Accept": "text/plain", "Content-Type": "text/csv", "User-Agent": "shop/2", "Idempotency-Key": "one",
	}}
	public := map[string]string{
		"Accept": "text/plain", "Content-Type": "text/csv", "User-Agent": "shop/2", "Idempotency-Key": "one",
	}
	private := []string{"Authorization", "X-Api-Key", "Cookie", "Private-Token", "Referer"}
	got := make(chan http.Header, 1)

	t.Run("same host", func(t *testing.T) {
		server := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/start" {
				http.Redirect(w, r, "/end", http.StatusTemporaryRedirect)
				return
			}
			got <- r.Header
		})
		payload.URL = server.URL + "/start?token=secret"
		require.NoError(t, call(t, httprequest.Config{}, payload))
		header := <-got
		for name := range payload.Headers {
			assert.Contains(t, header, http.CanonicalHeaderKey(name))
		}
	})
	t.Run("another host", func(t *testing.T) {
		end := serve(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
		payload.URL = redirectTo(t, http.StatusTemporaryRedirect, end.URL).URL + "/?token=secret"
		require.NoError(t, call(t, httprequest.Config{}, payload))
		header := <-got
		for name, value := range public {
			assert.Equal(t, value, header.Get(name))
		}
		for _, name := range private {
			assert.NotContains(t, header, name)
		}
	})
	t.Run("there and back again", func(t *testing.T) {
		var home *httptest.Server
		away := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, home.URL+"/end", http.StatusTemporaryRedirect)
		})
		home = serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/end" {
				got <- r.Header
				return
			}
			http.Redirect(w, r, away.URL, http.StatusTemporaryRedirect)
		})
		payload.URL = home.URL
		require.NoError(t, call(t, httprequest.Config{}, payload))
		header := <-got
		for _, name := range private {
			assert.NotContains(t, header, name)
		}
	})
}

func portOf(t *testing.T, rawURL string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	return u.Port()
}
