package upstream

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

// Transport is an [http.RoundTripper] that keeps every call of an [http.Client] to a
// policy, in any program: before the call it reserves, after it heeds what the
// response says, for every process at once.
//
// A call whose slot is near waits for it. One whose slot is further off than MaxWait is
// not made: the error then has an [*throttle.ThrottledError] in it, which an asynq
// handler under the worker's middleware just returns to be deferred. Within such a
// handler the task's own reservation, if it is of the same policy and attributes,
// serves for the first call; each further one reserves anew, with a slot of its own of
// each concurrency limit, beside the one that the task holds.
//
// The response is the caller's, refusals too: nothing is retried, and no byte of the
// body is read before the caller reads it. A slot of a concurrency limit ends when
// the body is closed. A Transport is safe for concurrent use.
type Transport struct {
	// Limiter decides. Required.
	Limiter *throttle.Limiter
	// Policy is the name of the policy of every call. Required, and one of the
	// Limiter's.
	Policy string
	// Attributes tells a call's attributes, such as whose token it carries. Those of
	// [WithAttributes] come on top. Nil means none.
	Attributes func(*http.Request) map[string]string
	// MaxWait is how long a call may be held until its slot. Zero means the policy's
	// own; negative means that no call is held.
	MaxWait time.Duration
	// Costs reads from a body, once the caller has read it to the end, what the call
	// really cost; see [ShopifyGraphQL] and [TokenUsage]. Nil means that a call costs
	// what was reserved.
	Costs func(body []byte) (Usage, bool)
	// Observe hears what came of every response. Nil means nobody does.
	Observe func(Report)
	// Base makes the calls. Nil means http.DefaultTransport.
	Base http.RoundTripper
}

type attributesKey struct{}

// WithAttributes returns a context whose calls have these attributes, besides those
// that the context has already: whose count they go to, and what they cost.
func WithAttributes(ctx context.Context, attributes map[string]string) context.Context {
	return context.WithValue(ctx, attributesKey{}, merged(attributesOf(ctx), attributes))
}

func attributesOf(ctx context.Context) map[string]string {
	attributes, _ := ctx.Value(attributesKey{}).(map[string]string)
	return attributes
}

// merged has the attributes of both, those of the second in case of doubt; nil if both are.
func merged(first, second map[string]string) map[string]string {
	if first == nil {
		return maps.Clone(second)
	}
	all := maps.Clone(first)
	maps.Copy(all, second)
	return all
}

// RoundTrip makes one call when the policy allows. Its errors are those of Base, and
// those of [throttle.Limiter.Reserve] and [throttle.Reservation.Wait].
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	reservation, isOwn, err := t.admit(ctx, request)
	if err != nil {
		if request.Body != nil {
			_ = request.Body.Close() // as every RoundTripper must
		}
		return nil, err
	}
	if isOwn {
		reservation.Hold(context.WithoutCancel(ctx))
	}
	sent := time.Now()
	response, err := cmp.Or(t.Base, http.DefaultTransport).RoundTrip(request)
	if err != nil {
		t.failed(ctx, reservation, isOwn, err)
		return nil, err
	}
	if t.Observe != nil {
		ctx = WithObserver(ctx, t.Observe)
	}
	report, _ := Heed(ctx, reservation, Call{ // what Redis did not hear, the next response says again
		Sent: sent, Received: time.Now(), Status: response.StatusCode, Header: response.Header,
	})
	response.Body = t.wrap(ctx, response.Body, reservation, isOwn, report)
	return response, nil
}

// admit returns the reservation that the call may be made by, and whether it was made
// for this call alone.
func (t *Transport) admit(ctx context.Context, request *http.Request) (*throttle.Reservation, bool, error) {
	attributes := attributesOf(ctx)
	if t.Attributes != nil {
		attributes = merged(t.Attributes(request), attributes)
	}
	task, inTask := throttle.FromContext(ctx)
	inTask = inTask && task.Policy == t.Policy
	if inTask && attributes == nil {
		attributes = task.Request().Attributes
	}
	ask := throttle.Request{Policy: t.Policy, Attributes: attributes, MaxWait: t.maxWait()}
	if inTask && task.Use(ask) {
		return task, false, nil
	}
	reservation, err := t.Limiter.Reserve(ctx, ask)
	if err == nil {
		err = reservation.Wait(ctx)
	}
	return reservation, true, err
}

func (t *Transport) maxWait() time.Duration {
	switch policy := t.Limiter.Config().Policy(t.Policy); {
	case t.MaxWait < 0:
		return 0
	case t.MaxWait == 0 && policy != nil:
		return policy.Wait()
	}
	return t.MaxWait
}

// failed ends the reservation of a call that got no response. What was never sent
// gives its tokens back.
func (t *Transport) failed(ctx context.Context, r *throttle.Reservation, isOwn bool, err error) {
	dial := (*net.OpError)(nil)
	if isOwn && errors.As(err, &dial) && dial.Op == "dial" {
		_ = r.Cancel(ctx) // best effort, as below: unused tokens come back by themselves
		return
	}
	_ = r.Settle(ctx)
	if isOwn {
		_ = r.Release(ctx)
	}
}

// mostRead bounds how much of a body is kept to read its cost from.
const mostRead = 1 << 20

// body is a response's body that knows when it was read and closed.
type body struct {
	io.ReadCloser
	transport   *Transport
	ctx         context.Context
	reservation *throttle.Reservation
	isOwn       bool
	report      Report

	closing sync.Once
	read    []byte
	isLong  bool // more than mostRead
	isRead  bool // to its end
}

// wrap returns a body that ends the reservation when it is closed. What the caller
// can write to, after a switch of protocols, stays that.
func (t *Transport) wrap(ctx context.Context, plain io.ReadCloser, r *throttle.Reservation, isOwn bool, report Report) io.ReadCloser {
	if !isOwn && t.Costs == nil {
		return plain
	}
	b := &body{ReadCloser: plain, transport: t, ctx: context.WithoutCancel(ctx), reservation: r, isOwn: isOwn, report: report}
	if w, ok := plain.(io.Writer); ok {
		return struct {
			*body
			io.Writer
		}{b, w}
	}
	return b
}

// Read passes on what the caller reads.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.transport.Costs != nil && !b.isLong {
		if b.isLong = len(b.read)+n > mostRead; !b.isLong {
			b.read = append(b.read, p[:n]...)
		}
	}
	b.isRead = b.isRead || errors.Is(err, io.EOF)
	return n, err
}

// Close ends the call's slots and tells what it really cost.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.closing.Do(func() {
		b.account()
		if b.isOwn {
			_ = b.reservation.Release(b.ctx) // what can not be released ends with its lease
		}
	})
	return err
}

// account corrects the cost, if the body tells one. Best effort: the estimate stands
// where that fails.
func (b *body) account() {
	if b.transport.Costs == nil || !b.isRead || b.isLong {
		return
	}
	usage, ok := b.transport.Costs(b.read)
	if !ok {
		return
	}
	_ = b.reservation.Adjust(b.ctx, usage.Attributes)
	policy := b.reservation.Terms()
	if policy.Upstream == nil || len(usage.Quotas) == 0 && usage.Refusal == nil {
		return
	}
	report := Report{Policy: b.report.Policy, Answer: Answer{Date: b.report.Date, Quotas: usage.Quotas, Refusal: usage.Refusal}}
	_ = report.tell(b.ctx, b.reservation, policy, Call{Received: time.Now()})
	observe(b.ctx, report)
}
