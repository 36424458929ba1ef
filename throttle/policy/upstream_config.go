package throttle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Upstream says how a policy heeds what its upstream tells of its quota: in response
// headers, and by refusing calls. Every call made under such a policy must be told
// of, by [Reservation.Reconcile] or [Reservation.Settle]; what makes the calls
// (upstream.Transport, worker.Middleware) does that.
type Upstream struct {
	// API is how the upstream tells. Empty means APIAuto.
	API API
	// Headroom is how many tokens of the upstream's quota to leave alone, for other
	// programs that spend the same quota between two of our calls. Zero means none.
	Headroom int64
	// Quotas says for names of the upstream's quotas which limit each corrects, as in
	// {"tokens": "per-minute"}. A quota that is not among them corrects the limit of
	// its own name, else the only one, else the one with its window, else the one with
	// the longest period.
	Quotas map[string]string
	// MaxFreeze bounds for how long one response can close anything. Zero means
	// DefaultMaxFreeze.
	MaxFreeze time.Duration
}

// DefaultMaxFreeze is for how long a response can close a policy or a key when the
// policy does not say.
const DefaultMaxFreeze = time.Hour

// LongestFreeze returns MaxFreeze with its default applied.
func (u *Upstream) LongestFreeze() time.Duration {
	if u == nil || u.MaxFreeze <= 0 {
		return DefaultMaxFreeze
	}
	return u.MaxFreeze
}

// The algorithms of what is kept beside the declared limits of a policy with an
// Upstream. Each is a limit like any other, with numbers that are learned.
const (
	// told is what the upstream says of a limit's quota.
	told Algorithm = "upstream"
	// pace is the rate found out where the upstream refuses without saying why.
	pace Algorithm = "pace"
)

// Whose decision a slot was, in [Decision.HeldBy]: the name of a limit followed by one
// of these.
const (
	// HeldByUpstream: what the upstream says of that limit's quota.
	HeldByUpstream = "/upstream"
	// HeldByPace: a rate that the upstream's refusals taught.
	HeldByPace = "/pace"
)

func (l *Limit) isAboutUpstream() bool { return l.Algorithm == told || l.Algorithm == pace }

// shortestFlight is the least time after which a call that nobody told the end of is
// taken to have ended.
const shortestFlight = 5 * time.Minute

// complete returns the policy with the limits that keep what its upstream says after
// the declared ones: one for each quota, and one pace for the limit that turns over
// fastest.
func (p *Policy) complete() *Policy {
	if p.Upstream == nil {
		return p
	}
	full := *p
	full.Limits = slices.Clone(p.Limits)
	fastest := -1
	for i := range p.Limits {
		limit := &p.Limits[i]
		if limit.Algorithm == Concurrency {
			continue
		}
		full.Limits = append(full.Limits, Limit{
			Name: limit.Name + HeldByUpstream, Algorithm: told, Rate: limit.Rate, Per: limit.Per, Cost: limit.Cost,
			Headroom: Headroom{Tokens: limit.kept()}, flight: max(shortestFlight, 2*p.Wait()), headroom: p.Upstream.Headroom,
		})
		if fastest < 0 || limit.Rate.Period < p.Limits[fastest].Rate.Period {
			fastest = i
		}
	}
	if fastest >= 0 {
		limit := &p.Limits[fastest]
		full.Limits = append(full.Limits, Limit{
			Name: limit.Name + HeldByPace, Algorithm: pace, Rate: limit.Rate, Per: limit.Per, Cost: limit.Cost,
		})
	}
	return &full
}

func (f *findings) upstream(path string, p *Policy) {
	u := p.Upstream
	if u == nil {
		return
	}
	if u.API != "" {
		var names []string
		for _, api := range APIs() {
			names = append(names, string(api))
		}
		if err := checkWord("API", string(u.API), names...); err != nil {
			f.add(join(path, "api"), "%v", err)
		}
	}
	if u.Headroom < 0 || u.Headroom > MaxCount {
		f.add(join(path, "headroom"), "the headroom is %d tokens, not from 0 to %d", u.Headroom, MaxCount)
	}
	if u.MaxFreeze < 0 || u.MaxFreeze > MaxMaxFreeze {
		f.add(join(path, "max_freeze"), "%s is not from 0s to %s", u.MaxFreeze, MaxMaxFreeze)
	}
	var limits []string
	for i := range p.Limits {
		if p.Limits[i].Algorithm != Concurrency {
			limits = append(limits, p.Limits[i].Name)
		}
	}
	for _, quota := range slices.Sorted(maps.Keys(u.Quotas)) {
		if limit := u.Quotas[quota]; !slices.Contains(limits, limit) {
			f.add(join(join(path, "quotas"), quota), "%s", unknownLimit(limit, limits))
		}
	}
}

func unknownLimit(name string, limits []string) string {
	if meant := nearest(name, limits); meant != "" {
		return fmt.Sprintf("unknown limit %s; did you mean %s?", quote(name), quote(meant))
	}
	if len(limits) == 0 {
		return "the policy has no limit with a rate for a quota to correct"
	}
	return fmt.Sprintf("unknown limit %s; use one of %s", quote(name), strings.Join(limits, ", "))
}
