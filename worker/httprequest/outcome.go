package httprequest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// excerptBytes is how much of a body an error quotes.
const excerptBytes = 200

// drainTime is how long a rate-limited answer may take to send its body. The
// other workers must hear of it, and a connection is cheaper than their calls.
const drainTime = 100 * time.Millisecond

// outcome says what an answer means for the task. It reads the body as far as
// it may; cancel ends the call and with it a body that takes too long.
func (h *handler) outcome(what string, refusal, limited error, resp *http.Response, cancel context.CancelFunc) error {
	status := resp.StatusCode
	if status == http.StatusSwitchingProtocols {
		// From here on the other side speaks something else, perhaps for ever.
		return archived(fmt.Errorf("%s: %s: not an answer", what, resp.Status))
	}
	if limited != nil {
		timer := time.AfterFunc(drainTime, cancel)
		defer timer.Stop()
		h.readBody(resp)
		return limited
	}

	excerpt := h.readBody(resp)
	if status >= 200 && status < 300 {
		return nil
	}
	reason := fmt.Errorf("%s: %s", what, resp.Status)
	if refusal != nil {
		reason = fmt.Errorf("%w: %w", reason, refusal)
	} else if excerpt != "" {
		reason = fmt.Errorf("%w: %s", reason, excerpt)
	}
	if status >= 500 {
		return reason
	}
	return archived(reason)
}

// readBody reads a body so that its connection can be used again, up to MaxBody
// bytes, and returns its beginning. A body that breaks off changes nothing: the
// status has said it all.
func (h *handler) readBody(resp *http.Response) string {
	body := io.LimitReader(resp.Body, h.cfg.MaxBody)
	start, err := io.ReadAll(io.LimitReader(body, excerptBytes+1))
	if err == nil {
		_, _ = io.Copy(io.Discard, body)
	}
	return excerpt(start)
}

// excerpt makes one line of the beginning of a body: at most excerptBytes of
// it, blanks folded, and nothing a terminal might act on.
func excerpt(body []byte) string {
	cut := len(body) > excerptBytes
	if cut {
		end := excerptBytes
		for end > excerptBytes-utf8.UTFMax && !utf8.RuneStart(body[end]) {
			end-- // not within a rune
		}
		body = body[:end]
	}
	text := strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(bytes.ToValidUTF8(body, []byte("\uFFFD"))))
	text = strings.Join(strings.Fields(text), " ")
	if cut {
		text += "..."
	}
	return text
}

// printable writes a URL without what must not be shown: user and password, and
// a query or fragment, where keys and tokens tend to be.
func printable(u *url.URL) string {
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	if u.RawQuery != "" {
		return shown.String() + "?..."
	}
	return shown.String()
}

// withoutURL takes the reason out of an error that quotes its URL in full.
func withoutURL(err error) error {
	if quoted, ok := errors.AsType[*url.Error](err); ok {
		return quoted.Err
	}
	return err
}

// heed has the shared state corrected by what a response says, if the task's policy
// has an upstream, and returns the error of a call that was refused, or nil.
func (h *handler) heed(ctx context.Context, resp *http.Response, sent time.Time) error {
	status := resp.StatusCode
	limited := &throttle.RateLimitedError{Status: resp.Status, RetryAfter: h.retryAfter(resp.Header, time.Now())}
	reservation, ok := throttle.FromContext(ctx)
	if !ok || reservation.Terms().Upstream == nil {
		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "" {
			return limited
		}
		return nil
	}
	report, err := upstream.Heed(ctx, reservation, upstream.Call{
		Sent: sent, Received: time.Now(), Status: status, Header: resp.Header,
	})
	if report.Refusal == nil {
		return nil // what Redis did not hear, the next response says again
	}
	if err != nil {
		return limited
	}
	return report.RateLimited(resp.Status)
}

// retryAfter is how long an answer asks to stay away. now stands in for a missing
// Date header. What makes no sense counts as not said, and so does zero.
func (h *handler) retryAfter(header http.Header, now time.Time) time.Duration {
	wait, ok := upstream.RetryAfter(header, now)
	if !ok {
		return h.cfg.DefaultRetryAfter
	}
	return min(wait, h.cfg.MaxRetryAfter)
}
