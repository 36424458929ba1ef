package httprequest

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
)

// redirectTrail follows the redirects of one call, as far as they may be
// followed. It belongs to a single call and is not safe for concurrent use.
type redirectTrail struct {
	max   int
	hosts hostRules
	// last is the URL asked last, refusal why the trail ended there; nil when no
	// redirect was refused.
	last    *url.URL
	refusal error
}

// follow is an http.Client's CheckRedirect. A redirect it refuses becomes the
// call's answer, so that one place decides what a 3xx means.
func (t *redirectTrail) follow(req *http.Request, via []*http.Request) error {
	if len(via) > max(t.max, 0) {
		t.refusal = fmt.Errorf("redirect to %s not followed: it would be number %d", printable(req.URL), len(via))
		return http.ErrUseLastResponse
	}
	if err := t.hosts.check(req.URL); err != nil {
		t.refusal = fmt.Errorf("redirect to %s not followed: %w", printable(req.URL), err)
		return http.ErrUseLastResponse
	}
	t.last = req.URL
	// net/http copies the first request's headers at every hop, so a trail that
	// once left its origin stays without them even when it leads back.
	for _, hop := range append(via[1:], req) {
		if !sameOrigin(via[0].URL, hop.URL) {
			dropPrivateHeaders(req)
			break
		}
	}
	return nil
}

// describe names the call in errors: method, URL, and where redirects led.
func (t *redirectTrail) describe(first *http.Request) string {
	what := first.Method + " " + printable(first.URL)
	if t.last != first.URL {
		what += " (redirected to " + printable(t.last) + ")"
	}
	return what
}

// sameOrigin reports whether the second URL leads to the server of the first,
// over a connection that is no weaker.
func sameOrigin(from, to *url.URL) bool {
	if canonicalHost(from.Hostname()) != canonicalHost(to.Hostname()) {
		return false
	}
	if from.Scheme == to.Scheme {
		return portOf(from) == portOf(to)
	}
	return to.Scheme == "https" && portOf(from) == "80" && portOf(to) == "443"
}

// publicHeaders say what is asked for. Any other may say who asks, under a name
// nobody can foresee: Authorization, Cookie, X-Api-Key, and a Referer whose URL
// has a token in it.
var publicHeaders = []string{
	"Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language",
	"Content-Encoding", "Content-Language", "Content-Type", "Idempotency-Key", "User-Agent",
}

func dropPrivateHeaders(req *http.Request) {
	maps.DeleteFunc(req.Header, func(name string, _ []string) bool { return !slices.Contains(publicHeaders, name) })
}

// readableRedirects hides a Location that is no URL. net/http would make an
// error of it that looks like the network's, and the call would be repeated
// though its answer is known: a redirect nobody can follow.
type readableRedirects struct{ next http.RoundTripper }

func (r readableRedirects) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return resp, err
	}
	if location := resp.Header.Get("Location"); location != "" {
		if _, err := req.URL.Parse(location); err != nil {
			resp.Header.Del("Location")
		}
	}
	return resp, nil
}
