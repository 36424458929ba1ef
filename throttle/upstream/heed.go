package upstream

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Call is one call to an upstream and the response to it.
type Call struct {
	// Sent is when the request left, Received when the response's headers came; zero
	// means now.
	Sent, Received time.Time
	Status         int
	Header         http.Header
}

// Report is what came of a response that was heeded.
type Report struct {
	Answer
	// Policy and Limits are those of the call.
	Policy string
	// Heard is what the shared state learned.
	Heard throttle.Heard
	// Unmatched are the upstream's names of quotas that no limit of the policy is for.
	Unmatched []string

	// isClosed tells that a refusal closed something, or cut the rate.
	isClosed bool
}

// Heed reads the response to a call that a reservation was made for, and corrects the
// shared state by what it says, within one round trip to Redis: limits of the policy
// by the quotas, and by a refusal exactly what it speaks of. See
// [throttle.Reservation.Reconcile].
//
// In a policy without an Upstream it freezes the policy for a refusal that says for how
// long, and heeds nothing else. An error says why Redis could not be
// told; the Answer is there in any case. Every call is heeded once.
func Heed(ctx context.Context, r *throttle.Reservation, call Call) (Report, error) {
	p := r.Terms()
	if call.Received.IsZero() {
		call.Received = time.Now()
	}
	report := Report{Policy: r.Policy}
	if p.Upstream == nil {
		report.Answer = Read(policy.APIAuto, call.Status, call.Header, call.Received)
		if report.Refusal == nil || report.Refusal.RetryAfter == 0 {
			return report, nil
		}
		report.isClosed = true
		return report, r.Limiter().Freeze(ctx, r.Policy, min(report.Refusal.RetryAfter, policy.DefaultMaxFreeze))
	}
	report.Answer = Read(p.Upstream.API, call.Status, call.Header, call.Received)
	err := report.tell(ctx, r, p, call)
	observe(ctx, report)
	return report, err
}

// tell tells the shared state what was read.
func (r *Report) tell(ctx context.Context, reservation *throttle.Reservation, policy *policy.Policy, call Call) error {
	seen := throttle.Observation{
		Sent: call.Sent, Received: call.Received, Date: r.Date,
		Quotas: map[string]throttle.Reading{}, Close: map[string]time.Duration{},
	}
	for _, quota := range r.Quotas {
		limit, ok := limitFor(policy, quota)
		if !ok {
			r.Unmatched = append(r.Unmatched, quota.Quota)
			continue
		}
		if other, twice := seen.Quotas[limit]; !twice || quota.Remaining < other.Remaining {
			seen.Quotas[limit] = quota
		}
	}
	seen.Unseen = len(seen.Quotas) == 0 && r.Refusal == nil
	if r.Refusal != nil {
		r.close(policy, &seen)
	}
	var err error
	r.Heard, err = reservation.Reconcile(ctx, seen)
	return err
}

// close closes what a refusal speaks of.
func (r *Report) close(policy *policy.Policy, seen *throttle.Observation) {
	refusal := *r.Refusal
	wait := min(refusal.RetryAfter, policy.Upstream.LongestFreeze())
	// A name may be that of a quota for some calls only.
	isPart := slices.ContainsFunc(r.Quotas, func(q throttle.Reading) bool { return q.Part && q.Quota == refusal.Quota })
	limit, known := limitFor(policy, throttle.Reading{Quota: refusal.Quota, Part: isPart})
	switch refusal.Reason {
	case Unavailable:
		seen.Freeze = wait
	case QuotaUsed, Abuse:
		switch {
		case known && isWindowsEnd(seen.Quotas[limit], wait):
			r.isClosed = true // by its reading
			return
		case known && wait > 0:
			seen.Close[limit] = wait
		case known:
			seen.Refused = true
		case len(policy.Rated()) == 0:
			seen.Freeze = wait
		}
	case TooManyAtOnce, Locked:
		// No rate is at fault, so none is closed: the task alone comes back.
	}
	r.isClosed = seen.Freeze > 0 || seen.Refused || len(seen.Close) > 0
}

// isWindowsEnd reports whether a refusal lasts until the end of a window that is used
// up, as far as both are told in whole seconds. Then the window tells better: its end
// is known from all responses together, and nothing is to start later than that.
func isWindowsEnd(quota throttle.Reading, wait time.Duration) bool {
	return quota.Limit > 0 && quota.Remaining == 0 && !quota.Refills && quota.Reset > 0 &&
		(wait-quota.Reset).Abs() <= time.Second
}

// RateLimited returns the error that defers the task of a call that was refused, or
// nil if it was not. A handler just returns it: nothing is charged, and others know
// already.
func (r *Report) RateLimited(status string) error {
	if r.Refusal == nil {
		return nil
	}
	return &throttle.RateLimitedError{
		Status: status, RetryAfter: r.Refusal.RetryAfter, Heeded: true, Alone: !r.isClosed,
	}
}

type observerKey struct{}

// WithObserver returns a context in which every response that is heeded is reported
// to that function, besides those that the context has already. The worker's
// middleware counts and logs by it.
func WithObserver(ctx context.Context, observer func(Report)) context.Context {
	return context.WithValue(ctx, observerKey{}, observer)
}

func observe(ctx context.Context, report Report) {
	if observer, ok := ctx.Value(observerKey{}).(func(Report)); ok {
		observer(report)
	}
}

// limitFor returns the name of the limit that a quota of the upstream corrects: the
// one that the policy's Quotas say, or that has the quota's name; else, unless the
// quota is only for some of the calls, the only one there is, the one with its
// window, or the one with the longest period.
func limitFor(p *policy.Policy, quota throttle.Reading) (string, bool) {
	if limit, ok := p.Upstream.Quotas[quota.Quota]; ok {
		return limit, true
	}
	limits := p.Rated()
	for i := range limits {
		if limits[i].Name == quota.Quota {
			return quota.Quota, true
		}
	}
	if limits = withCost(limits, quota.Quota); quota.Part || len(limits) == 0 {
		return "", false
	}
	for i := range limits {
		if limits[i].Rate.Period == quota.Window {
			return limits[i].Name, true
		}
	}
	longest := slices.MaxFunc(limits, func(a, b policy.Limit) int { return cmp.Compare(a.Rate.Period, b.Rate.Period) })
	return longest.Name, true
}

// withCost keeps tokens and requests apart: a quota of tokens or points is for limits
// that count a cost, and one of requests for those that do not.
func withCost(limits []policy.Limit, quota string) []policy.Limit {
	isTokens, isRequests := strings.Contains(quota, "tokens") || quota == "points", quota == "requests"
	if !isTokens && !isRequests {
		return limits
	}
	fits := slices.DeleteFunc(slices.Clone(limits), func(l policy.Limit) bool {
		return (l.Cost != "") != isTokens
	})
	if len(fits) == 0 && isRequests && len(limits) == 1 {
		return limits
	}
	return fits
}
