package throttle

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// claim is a request made concrete: for each limit of its policy, whose count it
// goes to and what it costs there.
type claim struct {
	request Request
	keys    []string // values of the limits' Per attributes
	costs   []int64
	weight  int64 // of the task's lane
	urgent  bool
	since   int64       // when the task came, in microseconds, if it was here before; see Limiter.reserve
	never   *NeverError // set when a cost is above what its limit ever holds
}

func newClaim(policy *Policy, request Request) (*claim, error) {
	c := &claim{
		request: request,
		keys:    make([]string, len(policy.Limits)),
		costs:   make([]int64, len(policy.Limits)),
		urgent:  isUrgent(request.Attributes),
	}
	if request.TaskID == "" && len(policy.concurrency()) > 0 {
		c.request.TaskID = newHolder()
	}
	var err error
	if c.weight, err = policy.weightFor(request.Attributes); err != nil {
		return nil, err
	}
	for i := range policy.Limits {
		var err error
		c.keys[i], c.costs[i], err = policy.Draw(&policy.Limits[i], request.Attributes)
		if never, ok := errors.AsType[*NeverError](err); ok {
			c.never = cmp.Or(c.never, never)
		} else if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Draw tells whose count of one of the policy's limits a task with these attributes
// goes to, and what it takes from it. The error is an [*AttributeError] when it lacks
// what the limit needs, and a [*NeverError] when it costs more than the limit ever
// holds; then, too, the key and the cost are told.
func (p *Policy) Draw(limit *Limit, attributes map[string]string) (key string, cost int64, err error) {
	if limit.Per != "" {
		if key = attributes[limit.Per]; key == "" {
			return "", 0, unfit(p, limit, limit.Per, "is missing")
		}
	}
	cost = 1
	if text, ok := attributes[limit.Cost]; ok && limit.Cost != "" {
		cost, err = strconv.ParseInt(text, 10, 64)
		if err != nil || cost < 1 {
			return "", 0, unfit(p, limit, limit.Cost, fmt.Sprintf("is %q, not a whole number above 0", shorten(text)))
		}
	}
	kept := limit.kept()
	if isUrgent(attributes) {
		kept = 0
	}
	if most := limit.Capacity() - kept; cost > most {
		err = &NeverError{Policy: p.Name, Limit: limit.Name, Cost: cost, Max: most, Kept: kept}
	}
	return key, cost, err
}

// mostAdjusted bounds an actual cost, which no limit does, to what the scripts
// count exactly.
const mostAdjusted = MaxBurst

// adjusted returns the costs with the values of attributes in place of what was
// estimated.
func (c *claim) adjusted(policy *Policy, attributes map[string]string) ([]int64, error) {
	costs := slices.Clone(c.costs)
	for i := range policy.Limits {
		limit := &policy.Limits[i]
		text, ok := attributes[limit.Cost]
		if !ok || limit.Cost == "" {
			continue
		}
		cost, err := strconv.ParseInt(text, 10, 64)
		if err != nil || cost < 0 || cost > mostAdjusted {
			return nil, unfit(policy, limit, limit.Cost,
				fmt.Sprintf("is %q, not a whole number from 0 to %d", shorten(text), mostAdjusted))
		}
		costs[i] = cost
	}
	return costs, nil
}

// landed returns the claim of a call that has ended: nothing of it is in flight at the
// upstream any more.
func (c *claim) landed(policy *Policy) *claim {
	landed := *c
	landed.costs = slices.Clone(c.costs)
	for i := range policy.Limits {
		if policy.Limits[i].isAboutUpstream() {
			landed.costs[i] = 0
		}
	}
	return &landed
}

func unfit(policy *Policy, limit *Limit, attribute, problem string) error {
	return &AttributeError{Policy: policy.Name, Limit: limit.Name, Attribute: attribute, Problem: problem}
}

// parks reports whether the claim's task joins the waiting line when denied.
func (c *claim) parks() bool { return c.request.Park && c.request.TaskID != "" }

// impossible returns the decision on a claim that can never pass.
func (c *claim) impossible() (Decision, bool) {
	if c.never == nil {
		return Decision{}, false
	}
	return Decision{Outcome: Never, Policy: c.never.Policy, HeldBy: c.never.Limit}, true
}

func shorten(text string) string {
	const most = 40
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

// Keys of a policy share one hash tag, so that one script call reaches them all
// in a Redis Cluster. Names of policies and limits have no character of these
// patterns, so no two keys meet.
func keyPrefix(policy string) string { return "rm:{" + policy + "}" }

func freezeKey(policy string) string { return keyPrefix(policy) + "/freeze" }

// stateKey is where the count of one limit for one key is kept.
func stateKey(policy, limit, key string) string {
	name := keyPrefix(policy) + ":" + limit
	if key != "" {
		name += ":" + keyName(key)
	}
	return name
}

// keyName keeps long attribute values out of Redis's key names.
func keyName(key string) string {
	const longest = 128
	if len(key) <= longest {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256/" + hex.EncodeToString(sum[:])
}
