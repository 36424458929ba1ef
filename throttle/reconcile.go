package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Observation is what was seen of one call to the upstream.
type Observation struct {
	// Sent is when the request left, Received when the response's headers came, by
	// this process's clock: what counts is how long ago. Zero means now.
	Sent, Received time.Time
	// Date is the response's own time, by which windows are told apart. Zero means
	// that it has none; then Received stands in for it.
	Date time.Time
	// Quotas are what the response says, by the name of the limit that each corrects.
	Quotas map[string]Reading
	// Close closes keys of limits: of those named, the key of this call, for so long.
	Close map[string]time.Duration
	// Freeze closes the whole policy for so long.
	Freeze time.Duration
	// Refused tells of a refusal that says neither until when nor what is left: the
	// fleet's rate is cut, once per round trip.
	Refused bool
	// Unseen tells of a call that may have been counted though no response came, or
	// none that says what is left.
	Unseen bool
}

// Heard is what became of an Observation.
type Heard struct {
	// Quotas are what is known of each quota that the observation told of, by limit.
	Quotas map[string]Learned
	// SlowedDown tells that the fleet's rate was cut.
	SlowedDown bool
}

// Learned is what is known of one quota.
type Learned struct {
	// Limit is how many tokens it has in all; zero if nobody said.
	Limit int64
	// Stale tells that the response was older than what was known.
	Stale bool
	// Absurd tells that the response was not believed: its reset lies beyond two
	// windows and the policy's MaxFreeze.
	Absurd bool
}

// Reconcile corrects what is known of the upstream's quota by what one response to a
// call of this reservation says, for every process at once; and ends the call's
// flight, on the first time. It never raises what may start within a window of the
// upstream's; responses may come in any order.
//
// What was left when the upstream counted this call does not count those that it had
// not seen yet. So what may still start is what the latest response left, less all
// calls that are in flight: some of them were counted by then, which shows, and is
// made up for, when they end.
//
// Without a [policy.Upstream] in the policy it only does what the observation says of
// Freeze. It goes on when ctx ends, for a few seconds at most.
func (r *Reservation) Reconcile(ctx context.Context, o Observation) (Heard, error) {
	return r.reconcile(ctx, time.Now(), o)
}

// reconcile is Reconcile at the local instant now.
func (r *Reservation) reconcile(ctx context.Context, now time.Time, o Observation) (Heard, error) {
	if r.Outcome != Granted {
		return Heard{}, errors.New("throttle: reconcile needs a granted reservation")
	}
	r.mu.Lock()
	calls, claim, receipts := r.heir(), r.claim, r.receipts
	flies := !r.settled && !r.cancelled
	r.settled = true
	r.mu.Unlock()
	if !flies {
		receipts = nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	return calls.reconcile(ctx, now, claim, receipts, r.At, o)
}

// Settle ends the flight of a call that nothing is known of, except that it was made:
// it is taken to have been counted. It does nothing for a reservation that was
// reconciled, cancelled or not granted, nor in a policy without a [policy.Upstream].
func (r *Reservation) Settle(ctx context.Context) error {
	r.mu.Lock()
	done := r.settled || r.cancelled || r.Outcome != Granted || r.heir().about == nil
	r.mu.Unlock()
	if done {
		return nil
	}
	_, err := r.Reconcile(ctx, Observation{Unseen: true})
	return err
}

// Reconcile does what [Reservation.Reconcile] does for a call that no reservation was
// made for: another program's, or one to ask the upstream how its quota stands.
func (l *Limiter) Reconcile(ctx context.Context, request Request, o Observation) (Heard, error) {
	calls, claim, err := l.claim(request)
	if err != nil {
		return Heard{}, err
	}
	return calls.reconcile(ctx, time.Now(), claim, nil, time.Time{}, o)
}

func (c *policyCalls) reconcile(ctx context.Context, now time.Time, claim *claim, receipts []int64, slot time.Time, o Observation) (Heard, error) {
	if c.about == nil {
		return Heard{}, c.freeze(ctx, o.Freeze)
	}
	since := func(t time.Time) int64 { return max(0, now.Sub(cmp.Or(t, now)).Microseconds()) }
	slotUS := int64(0)
	if receipts != nil {
		slotUS = slot.UnixMicro()
	}
	keys := []string{c.freezeKey}
	args := append(slices.Clone(c.aboutHead), "reconcile")
	args = append(args, receipts != nil, max(0, o.Freeze.Microseconds()), since(o.Received), since(o.Sent), slotUS, o.Unseen)
	heard := Heard{Quotas: map[string]Learned{}}
	for _, i := range c.about {
		limit := &c.policy.Limits[i]
		keys = append(keys, line.StateKey(c.policy.Name, limit.Name, claim.keys[i]))
		var cost, receipt int64
		if receipts != nil {
			cost, receipt = claim.costs[i], receipts[2*i]
		}
		args = append(args, cost, receipt)
		if limit.Algorithm == pace {
			args = append(append(args, nothingSaid...), 0, o.Refused)
			continue
		}
		closing := o.Close[declaredName(limit)].Microseconds()
		args = append(append(args, c.said(limit, o, now, &heard)...), max(-1, closing), false)
	}
	keys = append(keys, c.newMark())
	reply, err := integers(ctx, c.redis, c.scripts.Limits, keys, args)
	if err == nil && len(reply) != 1+2*len(c.about) {
		err = fmt.Errorf("a reply of %d numbers for %d limits", len(reply), len(c.about))
	}
	if err != nil {
		return heard, wrapCall("reconcile", c.policy.Name, err)
	}
	if o.Freeze > 0 {
		c.closures.close("", o.Freeze)
	}
	for n, i := range c.about {
		limit, result, quota := &c.policy.Limits[i], reply[1+2*n], reply[2+2*n]
		if limit.Algorithm == pace {
			heard.SlowedDown = result == 1
			continue
		}
		name := declaredName(limit)
		if learned, spoken := heard.Quotas[name]; spoken {
			learned.Limit, learned.Stale = quota, result == 2
			heard.Quotas[name] = learned
		}
		switch closing := o.Close[name]; {
		case closing > 0:
			c.closures.close(keys[1+n], closing)
		case closing < 0:
			c.closures.open(keys[1+n])
		}
	}
	return heard, nil
}

// nothingSaid is what said returns where the observation says nothing.
var nothingSaid = []any{0, 0, 0, 0, 0, 0}

// said is what the observation says of a limit, as the script reads it: kind, limit,
// remaining, ends_us, left_us, window_us.
func (c *policyCalls) said(limit *policy.Limit, o Observation, now time.Time, heard *Heard) []any {
	name := declaredName(limit)
	reading, ok := o.Quotas[name]
	if !ok {
		return nothingSaid
	}
	longest := c.policy.Upstream.LongestFreeze()
	window := reading.windowFor(limit)
	reset := reading.Reset
	if reset <= 0 {
		reset = min(window, longest)
	}
	learned := Learned{Absurd: reset > max(longest, 2*reading.Window, 2*window) || reading.Remaining < 0 || window > policy.MaxPeriod}
	heard.Quotas[name] = learned
	if learned.Absurd {
		return nothingSaid
	}
	date := cmp.Or(o.Date, o.Received, now)
	kind := 1
	if reading.Refills {
		kind = 2
	}
	return []any{
		kind, max(0, reading.Limit), reading.Remaining,
		date.Add(reset).UnixMicro(), reset.Microseconds(), window.Microseconds(),
	}
}

// windowFor is the reading's window where it corrects that limit.
//
// What follows a window is taken to be one that is no longer than declared: if it is,
// its first response says so, but until then nothing would start. How long a bucket
// takes to fill may be told by the time that is left until it is full; where that is
// told in whole seconds it is far too long for a bucket that is nearly full.
func (r Reading) windowFor(limit *policy.Limit) time.Duration {
	window, period := r.Window, limit.Rate.Period
	switch missing := r.Limit - r.Remaining; {
	case !r.Refills && (window <= 0 || window > period):
		return period
	case r.Refills && window <= 0 && r.Reset > 0 && missing > 0:
		return max(time.Microsecond, min(period, time.Duration(float64(r.Reset)/float64(missing)*float64(r.Limit))))
	case window <= 0:
		return period
	}
	return window
}

// declaredName is the name of the limit that one about the upstream stands beside.
func declaredName(l *policy.Limit) string {
	name, _, _ := strings.Cut(l.Name, "/") // which no declared name has
	return name
}
