package httprequest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
)

// Config says how the calls of http:request tasks are made. The zero value
// is ready to use: any host, with the defaults named at each field.
type Config struct {
	// AllowHosts are the only hosts that may be called, redirects included:
	// "api.example.com" on any port, "api.example.com:8443" on that port alone,
	// "*.example.com" for every name below example.com but not itself. Empty
	// allows every host.
	AllowHosts []string
	// Timeout bounds a whole call: connecting, redirects and reading the body.
	// Default 30s.
	Timeout time.Duration
	// MaxRedirects is how many redirects a call follows; the next one is not
	// followed. Default 5; negative follows none.
	MaxRedirects int
	// MaxBody is how many bytes of a response are read. Nobody needs more: the
	// body is only quoted in errors, and read to its end so that the connection
	// can be used again. What is longer is cut off with its connection.
	// Default 1 MiB.
	MaxBody int64
	// Transport makes the calls. Default: one of the handler's own, like
	// http.DefaultTransport with room to keep 100 connections to a host.
	Transport http.RoundTripper
	// DefaultRetryAfter is how long to stay away after a 429 that does not say,
	// or says what makes no sense. Default 1s, or MaxRetryAfter if that is less.
	DefaultRetryAfter time.Duration
	// MaxRetryAfter bounds how long an upstream can make its policy stay away.
	// Default 1h.
	MaxRetryAfter time.Duration
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.MaxRedirects = cmp.Or(c.MaxRedirects, 5)
	c.MaxBody = cmp.Or(c.MaxBody, 1<<20)
	if c.Transport == nil {
		c.Transport = newTransport()
	}
	c.MaxRetryAfter = cmp.Or(c.MaxRetryAfter, time.Hour)
	c.DefaultRetryAfter = cmp.Or(c.DefaultRetryAfter, min(time.Second, c.MaxRetryAfter))
	return c
}

// validate joins every problem of a config whose defaults are filled in.
func (c Config) validate() error {
	var problems []error
	if c.Timeout < 0 {
		problems = append(problems, fmt.Errorf("the Timeout of %s must be positive", c.Timeout))
	}
	if c.MaxBody < 0 {
		problems = append(problems, fmt.Errorf("the MaxBody of %d must be positive", c.MaxBody))
	}
	if c.MaxRetryAfter < 0 {
		problems = append(problems, fmt.Errorf("the MaxRetryAfter of %s must be positive", c.MaxRetryAfter))
	}
	if c.DefaultRetryAfter < 0 || c.DefaultRetryAfter > max(c.MaxRetryAfter, 0) {
		problems = append(problems, fmt.Errorf("the DefaultRetryAfter of %s must be positive and at most MaxRetryAfter (%s)",
			c.DefaultRetryAfter, c.MaxRetryAfter))
	}
	return errors.Join(problems...)
}

// newTransport is made for many calls to few hosts: with the two idle
// connections that net/http keeps to a host, most calls would have to connect.
func newTransport() http.RoundTripper {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // the program has put its own in place, and will know why
		return http.DefaultTransport
	}
	transport = transport.Clone()
	transport.MaxIdleConnsPerHost = 100
	return transport
}

// NewHandler returns the handler of http:request tasks, whose payload is
// [Payload]. What the upstream answers decides what becomes of the task:
//
//   - 2xx: done, whatever becomes of the body.
//   - 429, and 503 with Retry-After: a [throttle.RateLimitedError], on which
//     worker.Middleware freezes the policy and runs the task again at no retry. Under a
//     policy with an upstream, what that API says of its quota is heeded, by every
//     response; and a refusal is what that API means by one, such as a 403 of GitHub's
//     with nothing left, and closes what it speaks of.
//   - Other 4xx, and a redirect that is not followed: archived, with method,
//     URL, status and the beginning of the body as the reason.
//   - Other 5xx, network errors and calls that take longer than Timeout: an
//     error, for asynq to retry.
//
// A payload that makes no sense and a host that is not allowed are archived
// without a call. Reasons never contain a URL's password or query.
//
// asynq may run a task twice. So that the upstream can tell, a POST or PATCH
// carries the task's ID as Idempotency-Key, unless the payload has one or the
// ID was chosen by hand: a name like "daily-report" comes again tomorrow, and
// tomorrow's call is no repetition.
//
// A redirect to another host, another port or from https to http takes along
// only headers that say what is asked for, such as Accept and Content-Type, and
// none that might say who asks. Method and body follow net/http's rules.
//
// The handler is safe for concurrent use. A config that makes no sense is an
// error that names every problem.
func NewHandler(cfg Config) (asynq.Handler, error) {
	cfg = cfg.withDefaults()
	hosts, hostsErr := parseHostRules(cfg.AllowHosts)
	if err := errors.Join(cfg.validate(), hostsErr); err != nil {
		return nil, fmt.Errorf("HTTP handler: %w", err)
	}
	return &handler{cfg: cfg, hosts: hosts}, nil
}

type handler struct {
	cfg   Config
	hosts hostRules
}

// ProcessTask makes the task's call.
func (h *handler) ProcessTask(ctx context.Context, task *asynq.Task) error {
	payload, err := Decode(task.Payload())
	if err != nil {
		return archived(err)
	}
	callCtx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()

	req, err := h.newRequest(callCtx, payload)
	if err != nil {
		return archived(err)
	}
	trail := &redirectTrail{max: h.cfg.MaxRedirects, hosts: h.hosts, last: req.URL}
	client := http.Client{
		Transport:     readableRedirects{h.cfg.Transport},
		CheckRedirect: trail.follow,
	}
	sent := time.Now()
	resp, err := client.Do(req)
	what := trail.describe(req)
	switch {
	case err == nil:
		defer func() { _ = resp.Body.Close() }() // its outcome is known by then
		limited := h.heed(ctx, resp, sent)
		return h.outcome(what, trail.refusal, limited, resp, cancel)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, ctx.Err())
	case callCtx.Err() != nil:
		// Not wrapped: nobody shall take it for the end of the task's own time.
		return fmt.Errorf("%s: no answer within %s", what, h.cfg.Timeout)
	}
	return fmt.Errorf("%s: %w", what, withoutURL(err))
}

// newRequest makes the payload's request, if its host may be called.
func (h *handler) newRequest(ctx context.Context, p Payload) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, p.Method, p.URL, strings.NewReader(p.Body))
	if err != nil {
		return nil, withoutURL(err)
	}
	for name, value := range p.Headers {
		req.Header.Set(name, value)
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "rampmeter")
	}
	if key := idempotencyKey(ctx, req); key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if err := h.hosts.check(req.URL); err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, printable(req.URL), err)
	}
	if host := req.Header.Get("Host"); host != "" {
		// A front server passes the call on by this name, so it must be allowed too.
		if err := h.hosts.check(&url.URL{Scheme: req.URL.Scheme, Host: host}); err != nil {
			return nil, fmt.Errorf("%s %s: Host header: %w", req.Method, printable(req.URL), err)
		}
		req.Host = host
	}
	return req, nil
}

// idempotencyKey returns what the upstream may know a repetition by; empty when
// the payload says so itself, or there is nothing to repeat.
func idempotencyKey(ctx context.Context, req *http.Request) string {
	_, isSet := req.Header["Idempotency-Key"]
	mayRepeat := req.Method != http.MethodPost && req.Method != http.MethodPatch
	id, _ := asynq.GetTaskID(ctx)
	if isSet || mayRepeat || !asynqfacts.IsGeneratedID(id) {
		return ""
	}
	return id
}

// archived makes an error of which asynq archives the task.
func archived(err error) error {
	return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
}
