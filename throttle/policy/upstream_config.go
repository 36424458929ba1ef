package policy

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// Upstream says how a policy heeds what its upstream tells of its quota: in response
// headers, and by refusing calls. Every call made under such a policy must be told
// of, by Reconcile or Settle of its throttle.Reservation; what makes the calls
// (upstream.Transport, worker.Middleware) does that.
type Upstream struct {
	// API is how the upstream tells. Empty means APIAuto.
	API API `key:"api"`
	// Headroom is how many tokens of the upstream's quota to leave alone, for other
	// programs that spend the same quota between two of our calls. Zero means none.
	Headroom int64 `key:"headroom"`
	// Quotas says for names of the upstream's quotas which limit each corrects, as in
	// {"tokens": "per-minute"}. A quota that is not among them corrects the limit of
	// its own name, else the only one, else the one with its window, else the one with
	// the longest period.
	Quotas map[string]string `key:"quotas"`
	// MaxFreeze bounds for how long one response can close anything. Zero means
	// DefaultMaxFreeze.
	MaxFreeze time.Duration `key:"max_freeze"`
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

func (f *findings) upstream(path string, p *Policy) {
	u := p.Upstream
	if u == nil {
		return
	}
	if u.API != "" {
		f.check(join(path, "api"), checkWord("API", u.API, APIs()...))
	}
	if u.Headroom < 0 || u.Headroom > MaxCount {
		f.add(join(path, "headroom"), "the headroom is %d tokens, not from 0 to %d", u.Headroom, MaxCount)
	}
	if at := join(path, "max_freeze"); u.MaxFreeze < 0 || u.MaxFreeze > MaxMaxFreeze || f.zeros[at] {
		f.add(at, "%q is not a time from above 0s to %s", u.MaxFreeze, MaxMaxFreeze)
	}
	for _, quota := range slices.Sorted(maps.Keys(u.Quotas)) {
		f.check(join(join(path, "quotas"), quota), p.CheckRated(u.Quotas[quota]))
	}
}

// Rated returns the limits that are about a rate, as all but Concurrency limits are: only
// those can be corrected and closed by what the upstream says.
func (p *Policy) Rated() []Limit {
	return slices.DeleteFunc(slices.Clone(p.Limits), func(l Limit) bool { return l.Algorithm == Concurrency })
}

// CheckRated returns nil if one of Rated has that name. The error says which there are.
func (p *Policy) CheckRated(limit string) error {
	var names []string
	for _, l := range p.Rated() {
		names = append(names, l.Name)
	}
	if len(names) == 0 {
		return errors.New("the policy has no limit with a rate for a quota to correct")
	}
	return checkWord("limit", limit, names...)
}

// API names how an upstream tells its quota: which headers it sends, what they
// mean, and what its refusals speak of. Package upstream has a reader for each.
type API string

// The APIs this version can read.
const (
	// APIAuto goes by the headers that are there, for an upstream that is none of
	// the others. A reset without a unit is taken for a date if it is one, else for
	// seconds.
	APIAuto API = "auto"
	// APIGitHub sends X-RateLimit-*, an hour per resource; secondary limits refuse
	// with quota left.
	APIGitHub API = "github"
	// APIIETF sends RateLimit and RateLimit-Policy, by any draft of the IETF.
	APIIETF API = "ietf"
	// APIShopify tells how full its bucket is in X-Shopify-Shop-Api-Call-Limit, and
	// the points of GraphQL in the body.
	APIShopify API = "shopify"
	// APIStripe says in Stripe-Rate-Limited-Reason why it refused.
	APIStripe API = "stripe"
	// APIHubSpot sends X-HubSpot-RateLimit-*: a rolling interval, and a day.
	APIHubSpot API = "hubspot"
	// APISlack tells nothing but Retry-After.
	APISlack API = "slack"
	// APIX sends X-Rate-Limit-*, a window of 15 minutes.
	APIX API = "x"
	// APIOpenAI sends X-RateLimit-* for requests and tokens.
	APIOpenAI API = "openai"
	// APIAnthropic sends Anthropic-RateLimit-* for requests and tokens.
	APIAnthropic API = "anthropic"
	// APIZendesk sends the account's quota, and that of single endpoints.
	APIZendesk API = "zendesk"
	// APIDiscord sends X-RateLimit-* for a bucket that the reply names.
	APIDiscord API = "discord"
	// APIJira sends X-RateLimit-* and says in RateLimit-Reason why it refused.
	APIJira API = "jira"
)

// APIs lists all of them, in the order messages name them.
func APIs() []API {
	return []API{
		APIAuto, APIGitHub, APIIETF, APIShopify, APIStripe, APIHubSpot, APISlack,
		APIX, APIOpenAI, APIAnthropic, APIZendesk, APIDiscord, APIJira,
	}
}
