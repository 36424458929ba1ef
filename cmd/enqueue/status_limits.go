package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// limitReport is one limit for one key, or what it takes to name a key.
type limitReport struct {
	Policy string `json:"policy"`
	Limit  string `json:"limit"`
	Rate   string `json:"rate"`
	// Per is the attribute that has a count for each of its values, Key the value
	// shown here.
	Per string `json:"per,omitempty"`
	Key string `json:"key,omitempty"`
	// NeedsAttribute is set instead of the numbers when no -attr named the key.
	NeedsAttribute string `json:"needs_attribute,omitempty"`
	Max            *int64 `json:"max,omitempty"`
	Remaining      *int64 `json:"remaining,omitempty"`
	// ResetAfter is the time until the limit is full again, in milliseconds.
	ResetAfter *int64 `json:"reset_after_ms,omitempty"`
	// UpstreamLeaves is what the upstream itself says is left, if it has said so, less
	// what is in flight.
	UpstreamLeaves *int64 `json:"upstream_leaves,omitempty"`
	// FrozenUntil is set while the policy is closed because its upstream said so.
	FrozenUntil *time.Time `json:"frozen_until,omitempty"`

	resetAfter, frozenFor time.Duration
}

// readLimits peeks at every limit whose key is known.
func readLimits(ctx context.Context, s *session, attributes map[string]string) ([]limitReport, error) {
	limits := []limitReport{}
	for i := range s.config.Policies {
		policy := &s.config.Policies[i]
		known, err := peek(ctx, s.rdb, policy, attributes)
		if err != nil {
			return nil, err
		}
		for j := range policy.Limits {
			limit := &policy.Limits[j]
			if state, ok := known[limit.Name]; ok {
				limits = append(limits, state)
				continue
			}
			limits = append(limits, limitReport{
				Policy: policy.Name, Limit: limit.Name, Rate: limit.Rate.String(),
				Per: limit.Per, NeedsAttribute: limit.Per,
			})
		}
	}
	return limits, nil
}

// peek reads the limits of one policy that the attributes suffice for. A request
// has to name the keys of all limits, so the others are left out of the policy
// that is asked; that does not change where the rest keep their counts.
func peek(ctx context.Context, rdb redis.UniversalClient, p *policy.Policy, attributes map[string]string) (map[string]limitReport, error) {
	asked := policy.Policy{Name: p.Name}
	if p.Upstream != nil {
		asked.Upstream = &policy.Upstream{API: p.Upstream.API, Headroom: p.Upstream.Headroom}
	}
	for _, limit := range p.Limits {
		if limit.Per == "" || attributes[limit.Per] != "" {
			limit.Cost = "" // what is left is the same whatever a request costs
			asked.Limits = append(asked.Limits, limit)
		}
	}
	if len(asked.Limits) == 0 {
		return nil, nil
	}
	limiter, err := throttle.New(rdb, &policy.Config{Policies: []policy.Policy{asked}})
	if err != nil {
		return nil, err
	}
	decision, err := limiter.Peek(ctx, throttle.Request{Policy: p.Name, Attributes: attributes})
	if err != nil {
		return nil, err
	}
	states := make(map[string]limitReport, len(decision.Limits))
	for i, state := range decision.Limits {
		if name, ok := strings.CutSuffix(state.Name, throttle.HeldByUpstream); ok {
			r := states[name]
			r.UpstreamLeaves = &state.Remaining
			states[name] = r
		}
		if i >= len(asked.Limits) {
			continue
		}
		limit := &asked.Limits[i]
		reset := state.ResetAfter.Milliseconds()
		r := limitReport{
			Policy: p.Name, Limit: limit.Name, Rate: limit.Rate.String(), Per: limit.Per, Key: state.Key,
			Max: &state.Limit, Remaining: &state.Remaining, ResetAfter: &reset, resetAfter: state.ResetAfter,
		}
		if decision.HeldBy == throttle.HeldByFreeze {
			until := decision.At.UTC()
			r.FrozenUntil, r.frozenFor = &until, decision.RetryAfter()
		}
		states[limit.Name] = r
	}
	return states, nil
}

// cells are the limit's in the table.
func (l *limitReport) cells() string {
	start := fmt.Sprintf("%s\t%s\t%s", l.Policy, l.Limit, l.Rate)
	if l.NeedsAttribute != "" {
		return fmt.Sprintf("%s\teach %s: pass -attr %s=VALUE to see one\t\t\t", start, l.Per, l.Per)
	}
	key, reset := "all", "full"
	if l.Per != "" {
		key = l.Per + "=" + l.Key
	}
	if l.resetAfter > 0 {
		reset = "in " + inAbout(l.resetAfter)
	}
	if l.UpstreamLeaves != nil {
		reset += fmt.Sprintf(", the upstream leaves %d", *l.UpstreamLeaves)
	}
	if l.FrozenUntil != nil {
		reset += ", frozen for " + inAbout(l.frozenFor)
	}
	return fmt.Sprintf("%s\t%s\t%d\t%d\t%s", start, key, *l.Max, *l.Remaining, reset)
}

func (r *report) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells string) { _, _ = fmt.Fprintln(table, cells) } // Flush has the error
	if len(r.Queues) == 0 {
		row("There is no queue at " + r.Redis + " yet: nothing was ever enqueued.")
	} else {
		row("QUEUE\tPENDING\tACTIVE\tSCHEDULED\tRETRY\tARCHIVED\tDEFERRED\tNEXT DEFERRED")
	}
	for i := range r.Queues {
		row(r.Queues[i].cells(r.Time))
	}
	if err := table.Flush(); err != nil || len(r.Limits) == 0 {
		return err
	}
	row("")
	row("POLICY\tLIMIT\tRATE\tOF\tMAX\tREMAINING\tFULL AGAIN")
	for i := range r.Limits {
		row(r.Limits[i].cells())
	}
	return table.Flush()
}
