package throttle

import (
	"cmp"
	"slices"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// The algorithms of what is kept beside the declared limits of a policy with an
// Upstream. Each is a limit like any other, with numbers that are learned.
const (
	// told is what the upstream says of a limit's quota.
	told policy.Algorithm = "upstream"
	// pace is the rate found out where the upstream refuses without saying why.
	pace policy.Algorithm = "pace"
)

// Whose decision a slot was, in [Decision.HeldBy]: the name of a limit followed by one
// of these.
const (
	// HeldByUpstream: what the upstream says of that limit's quota.
	HeldByUpstream = "/upstream"
	// HeldByPace: a rate that the upstream's refusals taught.
	HeldByPace = "/pace"
)

func isAboutUpstream(l *policy.Limit) bool { return l.Algorithm == told || l.Algorithm == pace }

// shortestFlight is the least time after which a call that nobody told the end of is
// taken to have ended.
const shortestFlight = 5 * time.Minute

// longestFlight is that time for the calls under a policy.
func longestFlight(p *policy.Policy) time.Duration { return max(shortestFlight, 2*p.Wait()) }

// mostTold is the burst of what is kept beside the declared limits: it is the declared
// limit that a cost must fit into.
const mostTold = policy.MaxBurst

// complete returns the policy with the limits that keep what its upstream says after
// the declared ones: one for each quota, and one pace for the limit that turns over
// fastest.
func complete(p *policy.Policy) *policy.Policy {
	if p.Upstream == nil {
		return p
	}
	rated := p.Rated()
	if len(rated) == 0 {
		return p
	}
	beside := func(l policy.Limit, suffix string, algorithm policy.Algorithm, kept int64) policy.Limit {
		return policy.Limit{
			Name: l.Name + suffix, Algorithm: algorithm, Rate: l.Rate, Per: l.Per, Cost: l.Cost,
			Burst: mostTold, Headroom: policy.Headroom{Tokens: kept},
		}
	}
	full := *p
	full.Limits = slices.Clone(p.Limits)
	for _, limit := range rated {
		full.Limits = append(full.Limits, beside(limit, HeldByUpstream, told, limit.Kept()))
	}
	fastest := slices.MinFunc(rated, func(a, b policy.Limit) int { return cmp.Compare(a.Rate.Period, b.Rate.Period) })
	full.Limits = append(full.Limits, beside(fastest, HeldByPace, pace, 0))
	return &full
}

// declared returns the policy without the limits that complete has put into it.
func declared(p *policy.Policy) *policy.Policy {
	part := *p
	part.Limits = slices.DeleteFunc(slices.Clone(p.Limits), func(l policy.Limit) bool { return isAboutUpstream(&l) })
	return &part
}

// aboutUpstream returns the places in the policy of the limits that keep what the
// upstream says; none in a policy without an Upstream.
func aboutUpstream(p *policy.Policy) (places []int) {
	for i := range p.Limits {
		if isAboutUpstream(&p.Limits[i]) {
			places = append(places, i)
		}
	}
	return places
}
