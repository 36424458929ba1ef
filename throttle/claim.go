package throttle

import (
	"cmp"
	"errors"
	"slices"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// claim is a request made concrete: for each limit of its policy, whose count it
// goes to and what it costs there.
type claim struct {
	request Request
	keys    []string // values of the limits' Per attributes
	costs   []int64
	weight  int64 // of the task's lane
	urgent  bool
	since   int64              // when the task came, in microseconds, if it was here before; see Limiter.reserve
	never   *policy.NeverError // set when a cost is above what its limit ever holds
}

func newClaim(p *policy.Policy, request Request) (*claim, error) {
	c := &claim{
		request: request,
		keys:    make([]string, len(p.Limits)),
		costs:   make([]int64, len(p.Limits)),
		urgent:  policy.IsUrgent(request.Attributes),
	}
	if request.TaskID == "" && len(concurrencyLimits(p)) > 0 {
		c.request.TaskID = newHolder()
	}
	var err error
	if c.weight, err = p.WeightOf(request.Attributes); err != nil {
		return nil, err
	}
	for i := range p.Limits {
		c.keys[i], c.costs[i], err = p.Draw(&p.Limits[i], request.Attributes)
		if never, ok := errors.AsType[*policy.NeverError](err); ok {
			c.never = cmp.Or(c.never, never)
		} else if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// adjusted returns the costs with the values of attributes in place of what was
// estimated.
func (c *claim) adjusted(policy *policy.Policy, attributes map[string]string) ([]int64, error) {
	costs := slices.Clone(c.costs)
	for i := range policy.Limits {
		cost, given, err := policy.ActualCost(&policy.Limits[i], attributes)
		if err != nil {
			return nil, err
		}
		if given {
			costs[i] = cost
		}
	}
	return costs, nil
}

// landed returns the claim of a call that has ended: nothing of it is in flight at the
// upstream any more.
func (c *claim) landed(policy *policy.Policy) *claim {
	landed := *c
	landed.costs = slices.Clone(c.costs)
	for i := range policy.Limits {
		if isAboutUpstream(&policy.Limits[i]) {
			landed.costs[i] = 0
		}
	}
	return &landed
}

// parks reports whether the claim's task joins the waiting line when denied.
func (c *claim) parks() bool { return c.request.Park && c.request.TaskID != "" }

// stoodSince is the place of a task that stood by until now, as the line counts; or zero.
func (c *claim) stoodSince() int64 {
	since := c.request.Since
	switch {
	case since.IsZero():
		return 0
	case c.urgent:
		since = since.Add(-urgentLead)
	}
	return since.UnixMicro()
}

// impossible returns the decision on a claim that can never pass.
func (c *claim) impossible() (Decision, bool) {
	if c.never == nil {
		return Decision{}, false
	}
	return Decision{Outcome: Never, Policy: c.never.Policy, HeldBy: c.never.Limit}, true
}

// inLine is the claim's task as the waiting line knows it.
func (c *claim) inLine() line.Task {
	return line.Task{ID: c.request.TaskID, Attributes: c.request.Attributes, Urgent: c.urgent, Costs: c.costs, Weight: c.weight}
}
