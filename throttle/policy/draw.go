package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Draw tells whose count of one of the policy's limits a task with these attributes
// goes to, and what it takes from it. The error is an [*AttributeError] when it lacks
// what the limit needs, and a [*NeverError] when it costs more than the limit ever
// holds; then, too, the key and the cost are told.
func (p *Policy) Draw(limit *Limit, attributes map[string]string) (key string, cost int64, err error) {
	if key, err = p.Key(limit, attributes); err != nil {
		return "", 0, err
	}
	cost, given, problem := wholeIn(attributes, limit.Cost, 1, math.MaxInt64, "whole number")
	switch {
	case problem != "":
		return "", 0, unfit(p, limit, limit.Cost, problem)
	case !given:
		cost = 1
	}
	kept := limit.Kept()
	if IsUrgent(attributes) {
		kept = 0
	}
	if most := limit.MostCost() - kept; cost > most {
		err = &NeverError{Policy: p.Name, Limit: limit.Name, Cost: cost, Max: most, Kept: kept}
	}
	return key, cost, err
}

// Key tells whose count of one of the policy's limits a task with these attributes goes
// to; empty is the one count for all. The error is an [*AttributeError].
func (p *Policy) Key(limit *Limit, attributes map[string]string) (string, error) {
	key := attributes[limit.Per]
	switch {
	case limit.Per == "":
		return "", nil
	case key == "":
		return "", unfit(p, limit, limit.Per, "is missing")
	}
	return key, nil
}

// maxActualCost bounds an actual cost, which no limit does, to what the scripts count
// exactly.
const maxActualCost = MaxBurst

// ActualCost tells what a task with these attributes really cost at one of the policy's
// limits, which may be nothing. It is not given where the attribute of the limit's cost is
// missing, or where the limit has none. The error is an [*AttributeError].
func (p *Policy) ActualCost(limit *Limit, attributes map[string]string) (cost int64, given bool, err error) {
	cost, given, problem := wholeIn(attributes, limit.Cost, 0, maxActualCost, "whole number")
	if problem != "" {
		return 0, false, unfit(p, limit, limit.Cost, problem)
	}
	return cost, given, nil
}

// wholeIn reads the whole number in an attribute, if there is one, or tells the problem
// with it. An empty name is that of no attribute.
func wholeIn(attributes map[string]string, name string, least, most int64, what string) (n int64, given bool, problem string) {
	text, given := attributes[name]
	if name == "" || !given {
		return 0, false, ""
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil && n >= least && n <= most:
		return n, true, ""
	case most == math.MaxInt64:
		return 0, true, fmt.Sprintf("is %s, not a %s above %d", quote(text), what, least-1)
	}
	return 0, true, fmt.Sprintf("is %s, not a %s from %d to %d", quote(text), what, least, most)
}

func unfit(policy *Policy, limit *Limit, attribute, problem string) error {
	return &AttributeError{Policy: policy.Name, Limit: limit.Name, Attribute: attribute, Problem: problem}
}

// AttributeError says that a task does not carry what a limit needs: the
// attribute is missing, or its value is no cost. Asking again with the same
// attributes fails again.
type AttributeError struct {
	// Limit is empty where it is the policy that needs the attribute.
	Policy, Limit, Attribute string
	// Problem is what is wrong with it, as in "is missing".
	Problem string
}

// Error names attribute, limit and policy.
func (e *AttributeError) Error() string {
	if e.Limit == "" {
		return fmt.Sprintf("attribute %q %s: policy %q uses it (set it as a task header)", e.Attribute, e.Problem, e.Policy)
	}
	return fmt.Sprintf("attribute %q %s: limit %q of policy %q needs it (set it as a task header)",
		e.Attribute, e.Problem, e.Limit, e.Policy)
}

// NeverError says that a request can never pass, because it costs more than a
// limit ever holds.
type NeverError struct {
	Policy, Limit string
	// Max is the most that a limit ever has for such a request. Kept is what it has
	// besides, for urgent tasks alone.
	Cost, Max, Kept int64
}

// Error names cost, limit and policy.
func (e *NeverError) Error() string {
	kept := ""
	if e.Kept > 0 {
		kept = fmt.Sprintf(", besides %d kept for tasks of high priority", e.Kept)
	}
	return fmt.Sprintf("cost %d can never pass: limit %q of policy %q holds at most %d%s",
		e.Cost, e.Limit, e.Policy, e.Max, kept)
}

// MaxWeight is the largest weight of a lane.
const MaxWeight = 1000

// checkWeight tells what is wrong with a weight, or returns nil.
func checkWeight(weight int64) error {
	if weight < 1 || weight > MaxWeight {
		return fmt.Errorf("the weight is %d, but must be from 1 to %d", weight, MaxWeight)
	}
	return nil
}

// weights checks what a policy says of its lanes' weights.
func (f *findings) weights(path string, p *Policy) {
	if p.Lane == "" && p.Weight != "" {
		f.add(join(path, "weight"), "a weight is a lane's, but the policy has no lane; add one, as in lane: installation")
	}
	if p.Lane == "" && len(p.Weights) > 0 {
		f.add(join(path, "weights"), "weights are those of lanes, but the policy has no lane; add one, as in lane: installation")
	}
	for _, lane := range slices.Sorted(maps.Keys(p.Weights)) {
		f.check(join(join(path, "weights"), lane), checkWeight(p.Weights[lane]))
	}
}

// WeightOf returns the weight of the lane that a task with these attributes is in:
// what the attribute says, or else the policy, or else 1. The error is an
// [*AttributeError].
func (p *Policy) WeightOf(attributes map[string]string) (int64, error) {
	weight, given, problem := wholeIn(attributes, p.Weight, 1, MaxWeight, "weight")
	switch {
	case problem != "":
		return 0, &AttributeError{Policy: p.Name, Attribute: p.Weight, Problem: problem}
	case given:
		return weight, nil
	}
	return max(1, p.Weights[attributes[p.Lane]]), nil
}
