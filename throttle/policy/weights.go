package policy

import (
	"fmt"
	"maps"
	"slices"
)

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
