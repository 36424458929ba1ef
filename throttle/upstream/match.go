package upstream

import (
	"cmp"
	"slices"
	"strings"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// limitFor returns the name of the limit that a quota of the upstream corrects: the
// one that the policy's Quotas say, or that has the quota's name; else, unless the
// quota is only for some of the calls, the only one there is, the one with its
// window, or the one with the longest period.
func limitFor(p *policy.Policy, quota throttle.Reading) (string, bool) {
	if limit, ok := p.Upstream.Quotas[quota.Quota]; ok {
		return limit, true
	}
	limits := rated(p)
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

// rated returns the limits that a quota can correct.
func rated(p *policy.Policy) []policy.Limit {
	return slices.DeleteFunc(slices.Clone(p.Limits), func(l policy.Limit) bool {
		return l.Algorithm == policy.Concurrency
	})
}
