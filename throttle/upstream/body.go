package upstream

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
)

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
