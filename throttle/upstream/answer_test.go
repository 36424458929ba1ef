package upstream_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// noon is what the recorded responses have as their Date.
var noon = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

// headers reads lines of "Name: value", with a Date of noon.
func headers(lines string) http.Header {
	header := http.Header{"Date": {noon.Format(http.TimeFormat)}}
	for line := range strings.Lines(lines) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			header.Add(name, value)
		}
	}
	return header
}

// read reads a response on a machine whose clock is an hour off.
func read(api policy.API, status int, lines string) upstream.Answer {
	return upstream.Read(api, status, headers(lines), noon.Add(time.Hour))
}

type (
	reading = throttle.Reading
	refusal = upstream.Refusal
)

// Responses in the formats that each API documents, and what they mean.
func TestRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		api     policy.API
		status  int // 200 if left out
		header  string
		quotas  []reading
		refusal *refusal
	}{
		"github": {api: policy.APIGitHub, header: `
			x-ratelimit-limit: 5000
			x-ratelimit-remaining: 4987
			x-ratelimit-used: 13
			x-ratelimit-reset: 1767616200
			x-ratelimit-resource: core`,
			quotas: []reading{{Quota: "core", Limit: 5000, Remaining: 4987, Reset: 30 * time.Minute, Window: time.Hour}}},
		"github, used up": {api: policy.APIGitHub, status: 403, header: `
			x-ratelimit-limit: 60
			x-ratelimit-remaining: 0
			x-ratelimit-reset: 1767614460
			x-ratelimit-resource: core`,
			quotas:  []reading{{Quota: "core", Limit: 60, Reset: time.Minute, Window: time.Hour}},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: time.Minute, Quota: "core"}},
		"github, another resource": {api: policy.APIGitHub, header: `
			x-ratelimit-limit: 30
			x-ratelimit-remaining: 29
			x-ratelimit-reset: 1767614460
			x-ratelimit-resource: search`,
			quotas: []reading{{Quota: "search", Limit: 30, Remaining: 29, Reset: time.Minute, Part: true}}},
		"github, secondary limit": {api: policy.APIGitHub, status: 403, header: `
			x-ratelimit-limit: 5000
			x-ratelimit-remaining: 4000
			x-ratelimit-reset: 1767616200
			retry-after: 60`,
			quotas:  []reading{{Limit: 5000, Remaining: 4000, Reset: 30 * time.Minute, Window: time.Hour}},
			refusal: &refusal{Reason: upstream.Abuse, RetryAfter: time.Minute}},
		"github, secondary limit that does not say": {api: policy.APIGitHub, status: 429,
			refusal: &refusal{Reason: upstream.Abuse, RetryAfter: time.Minute}},
		"github, no permission": {api: policy.APIGitHub, status: 403, header: `
			x-ratelimit-limit: 5000
			x-ratelimit-remaining: 4000
			x-ratelimit-reset: 1767616200`,
			quotas: []reading{{Limit: 5000, Remaining: 4000, Reset: 30 * time.Minute, Window: time.Hour}}},

		"ietf -10": {api: policy.APIIETF, header: `
			RateLimit-Policy: "burst";q=100;w=60,"daily";q=1000;w=86400
			RateLimit: "burst";r=50;t=30, "daily";r=999;t=40000`,
			quotas: []reading{
				{Quota: "burst", Limit: 100, Remaining: 50, Reset: 30 * time.Second, Window: time.Minute},
				{Quota: "daily", Limit: 1000, Remaining: 999, Reset: 40000 * time.Second, Window: 24 * time.Hour},
			}},
		"ietf -10 in several lines, one quota alone": {api: policy.APIIETF, status: 429, header: `
			RateLimit-Policy: "burst";q=100;w=60;qu="requests";pk=:c2FtZQ==:
			RateLimit-Policy: "daily";q=1000;w=86400
			RateLimit: "burst";r=0;t=5`,
			quotas:  []reading{{Quota: "burst", Limit: 100, Reset: 5 * time.Second, Window: time.Minute}},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 5 * time.Second, Quota: "burst"}},
		"ietf -07": {api: policy.APIIETF, header: `
			RateLimit: limit=100, remaining=50, reset=5
			RateLimit-Policy: 100;w=10`,
			quotas: []reading{{Limit: 100, Remaining: 50, Reset: 5 * time.Second, Window: 10 * time.Second}}},
		"ietf -06": {api: policy.APIIETF, header: `
			RateLimit-Limit: 100
			RateLimit-Remaining: 50
			RateLimit-Reset: 50`,
			quotas: []reading{{Limit: 100, Remaining: 50, Reset: 50 * time.Second}}},

		"shopify": {api: policy.APIShopify, header: `X-Shopify-Shop-Api-Call-Limit: 32/40`,
			quotas: []reading{{Quota: "requests", Limit: 40, Remaining: 8, Window: 20 * time.Second, Refills: true}}},
		"shopify, refused": {api: policy.APIShopify, status: 429, header: `
			X-Shopify-Shop-Api-Call-Limit: 40/40
			Retry-After: 2.0`,
			quotas:  []reading{{Quota: "requests", Limit: 40, Window: 20 * time.Second, Refills: true}},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 2 * time.Second}},

		"stripe, rate": {api: policy.APIStripe, status: 429, header: `
			Stripe-Rate-Limited-Reason: global-rate
			Stripe-Should-Retry: true`,
			refusal: &refusal{Reason: upstream.QuotaUsed, Quota: "global-rate"}},
		"stripe, concurrency": {api: policy.APIStripe, status: 429, header: `Stripe-Rate-Limited-Reason: endpoint-concurrency`,
			refusal: &refusal{Reason: upstream.TooManyAtOnce, Quota: "endpoint-concurrency"}},
		"stripe, lock_timeout": {api: policy.APIStripe, status: 429, header: `Stripe-Should-Retry: true`,
			refusal: &refusal{Reason: upstream.Locked}},

		"hubspot": {api: policy.APIHubSpot, header: `
			X-HubSpot-RateLimit-Daily: 250000
			X-HubSpot-RateLimit-Daily-Remaining: 249000
			X-HubSpot-RateLimit-Interval-Milliseconds: 10000
			X-HubSpot-RateLimit-Max: 100
			X-HubSpot-RateLimit-Remaining: 93`,
			quotas: []reading{
				{Quota: "interval", Limit: 100, Remaining: 93, Window: 10 * time.Second},
				{Quota: "daily", Limit: 250000, Remaining: 249000, Window: 24 * time.Hour},
			}},
		"hubspot, OAuth": {api: policy.APIHubSpot, header: `
			X-HubSpot-RateLimit-Interval-Milliseconds: 10000
			X-HubSpot-RateLimit-Max: 110
			X-HubSpot-RateLimit-Remaining: 109`,
			quotas: []reading{{Quota: "interval", Limit: 110, Remaining: 109, Window: 10 * time.Second}}},
		"hubspot, used up": {api: policy.APIHubSpot, status: 429, header: `
			X-HubSpot-RateLimit-Daily: 250000
			X-HubSpot-RateLimit-Daily-Remaining: 0`,
			quotas:  []reading{{Quota: "daily", Limit: 250000, Window: 24 * time.Hour}},
			refusal: &refusal{Reason: upstream.QuotaUsed, Quota: "daily"}},

		"slack": {api: policy.APISlack, status: 429, header: `Retry-After: 30`,
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 30 * time.Second}},

		"x": {api: policy.APIX, status: 429, header: `
			x-rate-limit-limit: 900
			x-rate-limit-remaining: 0
			x-rate-limit-reset: 1767614700`,
			quotas:  []reading{{Limit: 900, Reset: 5 * time.Minute, Window: 15 * time.Minute}},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 5 * time.Minute}},

		"openai": {api: policy.APIOpenAI, header: `
			x-ratelimit-limit-requests: 60
			x-ratelimit-limit-tokens: 150000
			x-ratelimit-remaining-requests: 59
			x-ratelimit-remaining-tokens: 149984
			x-ratelimit-reset-requests: 1s
			x-ratelimit-reset-tokens: 6m0s`,
			quotas: []reading{
				{Quota: "requests", Limit: 60, Remaining: 59, Reset: time.Second, Refills: true},
				{Quota: "tokens", Limit: 150000, Remaining: 149984, Reset: 6 * time.Minute, Refills: true},
			}},
		"openai, milliseconds": {api: policy.APIOpenAI, header: `
			x-ratelimit-limit-requests: 5000
			x-ratelimit-remaining-requests: 4999
			x-ratelimit-reset-requests: 12ms`,
			quotas: []reading{{Quota: "requests", Limit: 5000, Remaining: 4999, Reset: 12 * time.Millisecond, Refills: true}}},

		"anthropic": {api: policy.APIAnthropic, status: 429, header: `
			anthropic-ratelimit-requests-limit: 50
			anthropic-ratelimit-requests-remaining: 49
			anthropic-ratelimit-requests-reset: 2026-01-05T12:00:02Z
			anthropic-ratelimit-input-tokens-limit: 40000
			anthropic-ratelimit-input-tokens-remaining: 0
			anthropic-ratelimit-input-tokens-reset: 2026-01-05T12:01:00Z
			retry-after: 14`,
			quotas: []reading{
				{Quota: "requests", Limit: 50, Remaining: 49, Reset: 2 * time.Second, Refills: true},
				{Quota: "input-tokens", Limit: 40000, Reset: time.Minute, Refills: true},
			},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 14 * time.Second}},

		"zendesk": {api: policy.APIZendesk, header: `
			X-Rate-Limit: 700
			X-Rate-Limit-Remaining: 699
			ratelimit-limit: 700
			ratelimit-remaining: 699
			ratelimit-reset: 41`,
			quotas: []reading{{Quota: "account", Limit: 700, Remaining: 699, Reset: 41 * time.Second, Window: time.Minute}}},
		"zendesk, old names": {api: policy.APIZendesk, header: `
			X-Rate-Limit: 700
			X-Rate-Limit-Remaining: 698`,
			quotas: []reading{{Quota: "account", Limit: 700, Remaining: 698, Window: time.Minute}}},
		"zendesk, an endpoint used up": {api: policy.APIZendesk, status: 429, header: `
			ratelimit-limit: 700
			ratelimit-remaining: 500
			ratelimit-reset: 41
			zendesk-ratelimit-tickets-index: total=100; remaining=0; resets=38`,
			quotas: []reading{
				{Quota: "account", Limit: 700, Remaining: 500, Reset: 41 * time.Second, Window: time.Minute},
				{Quota: "tickets-index", Limit: 100, Reset: 38 * time.Second, Part: true},
			},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 38 * time.Second, Quota: "tickets-index"}},

		"discord": {api: policy.APIDiscord, header: `
			X-RateLimit-Limit: 5
			X-RateLimit-Remaining: 4
			X-RateLimit-Reset: 1767614401.250
			X-RateLimit-Reset-After: 1.125
			X-RateLimit-Bucket: abcd1234`,
			quotas: []reading{{Quota: "abcd1234", Limit: 5, Remaining: 4, Reset: 1125 * time.Millisecond}}},
		"discord, this bucket": {api: policy.APIDiscord, status: 429, header: `
			X-RateLimit-Limit: 5
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 1767614401.250
			X-RateLimit-Bucket: abcd1234
			X-RateLimit-Scope: user`,
			quotas:  []reading{{Quota: "abcd1234", Limit: 5, Reset: 1250 * time.Millisecond}},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 1250 * time.Millisecond, Quota: "abcd1234"}},
		"discord, everything": {api: policy.APIDiscord, status: 429, header: `
			Retry-After: 65
			X-RateLimit-Global: true
			X-RateLimit-Scope: global`,
			refusal: &refusal{Reason: upstream.Unavailable, RetryAfter: 65 * time.Second}},
		"discord, shared": {api: policy.APIDiscord, status: 429, header: `
			Retry-After: 2
			X-RateLimit-Scope: shared`,
			refusal: &refusal{Reason: upstream.Abuse, RetryAfter: 2 * time.Second}},

		"jira": {api: policy.APIJira, status: 429, header: `
			X-RateLimit-Limit: 350
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 2026-01-05T12:05Z
			Retry-After: 300
			RateLimit-Reason: jira-quota-tenant-based`,
			quotas:  []reading{{Limit: 350, Reset: 5 * time.Minute}},
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 5 * time.Minute, Quota: "jira-quota-tenant-based"}},
		"jira, one issue": {api: policy.APIJira, status: 429, header: `
			Retry-After: 3
			RateLimit-Reason: jira-per-issue-on-write`,
			refusal: &refusal{Reason: upstream.Locked, RetryAfter: 3 * time.Second, Quota: "jira-per-issue-on-write"}},

		"auto, epoch": {api: policy.APIAuto, header: `
			X-RateLimit-Limit: 60
			X-RateLimit-Remaining: 2
			X-RateLimit-Reset: 1767614410`,
			quotas: []reading{{Limit: 60, Remaining: 2, Reset: 10 * time.Second}}},
		"auto, epoch milliseconds": {api: policy.APIAuto, header: `
			X-RateLimit-Remaining: 2
			X-RateLimit-Reset: 1767614410500`,
			quotas: []reading{{Remaining: 2, Reset: 10500 * time.Millisecond}}},
		"auto, seconds": {api: policy.APIAuto, header: `
			X-RateLimit-Limit: 60
			X-RateLimit-Remaining: 2
			X-RateLimit-Reset: 10`,
			quotas: []reading{{Limit: 60, Remaining: 2, Reset: 10 * time.Second}}},
		"auto, a date": {api: policy.APIAuto, header: `
			X-RateLimit-Remaining: 2
			X-RateLimit-Reset: 2026-01-05T12:00:10Z`,
			quotas: []reading{{Remaining: 2, Reset: 10 * time.Second}}},
		"auto, a 429 with a date": {api: policy.APIAuto, status: 429, header: `Retry-After: Mon, 05 Jan 2026 12:00:04 GMT`,
			refusal: &refusal{Reason: upstream.QuotaUsed, RetryAfter: 4 * time.Second}},
		"any, 503": {api: policy.APISlack, status: 503, header: `Retry-After: 4`,
			refusal: &refusal{Reason: upstream.Unavailable, RetryAfter: 4 * time.Second}},
		"any, 503 that does not say": {api: policy.APISlack, status: 503},
	} {
		if test.status == 0 {
			test.status = http.StatusOK
		}
		answer := read(test.api, test.status, test.header)
		assert.Equal(t, test.quotas, answer.Quotas, name)
		assert.Equal(t, test.refusal, answer.Refusal, name)
		assert.Empty(t, answer.Malformed, name)
		assert.True(t, answer.Date.Equal(noon), name)
	}
}

// What has a family of names of its own is read by auto as by its own profile.
func TestAutoKnowsNames(t *testing.T) {
	t.Parallel()
	for api, lines := range map[policy.API]string{
		policy.APIIETF:      `RateLimit: "a";r=5;t=3`,
		policy.APIShopify:   `X-Shopify-Shop-Api-Call-Limit: 3/40`,
		policy.APIHubSpot:   `X-HubSpot-RateLimit-Daily-Remaining: 7`,
		policy.APIAnthropic: `anthropic-ratelimit-tokens-remaining: 7`,
		policy.APIOpenAI:    `x-ratelimit-remaining-tokens: 7`,
	} {
		want := read(api, http.StatusOK, lines)
		require.Len(t, want.Quotas, 1, api)
		assert.Equal(t, want, read(policy.APIAuto, http.StatusOK, lines), api)
	}
}

// What makes no sense is named and left out; what stands beside it is not.
func TestMalformed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		api       policy.API
		header    string
		malformed []string
		quotas    []reading
	}{
		"no number": {policy.APIGitHub, "X-RateLimit-Limit: many\nX-RateLimit-Remaining: 5\nX-RateLimit-Reset: never",
			[]string{"X-Ratelimit-Limit", "X-Ratelimit-Reset"}, []reading{{Remaining: 5, Window: time.Hour}}},
		"negative":       {policy.APIGitHub, "X-RateLimit-Remaining: -1", []string{"X-Ratelimit-Remaining"}, nil},
		"huge":           {policy.APIGitHub, "X-RateLimit-Remaining: 99999999999999999999", []string{"X-Ratelimit-Remaining"}, nil},
		"reset is past":  {policy.APIGitHub, "X-RateLimit-Remaining: 5\nX-RateLimit-Reset: 1767614300", []string{"X-Ratelimit-Reset"}, []reading{{Remaining: 5, Window: time.Hour}}},
		"minute is past": {policy.APIJira, "X-RateLimit-Remaining: 5\nX-RateLimit-Reset: 2026-01-05T11:59Z", []string{"X-Ratelimit-Reset"}, []reading{{Remaining: 5}}},
		"no list":        {policy.APIIETF, `RateLimit: "a";r=5;t=`, []string{"Ratelimit"}, nil},
		"no quota":       {policy.APIIETF, `RateLimit: 5;r=5, "a";r="x", "b";r=-3, (1 2)`, []string{"Ratelimit"}, nil},
		"no policy":      {policy.APIIETF, "RateLimit: \"a\";r=5;t=3\nRateLimit-Policy: !", []string{"Ratelimit-Policy"}, []reading{{Quota: "a", Remaining: 5, Reset: 3 * time.Second}}},
		"negative list":  {policy.APIIETF, "RateLimit: \"a\";r=5;t=-3\nRateLimit-Policy: \"a\";q=-9;w=-1", nil, []reading{{Quota: "a", Remaining: 5}}},
		"negative pairs": {policy.APIIETF, "RateLimit: limit=-9, remaining=5, reset=-3\nRateLimit-Policy: 9;w=-1", nil, []reading{{Remaining: 5}}},
		"huge limit":     {policy.APIGitHub, "X-RateLimit-Limit: 99999999999999999999\nX-RateLimit-Remaining: 5", []string{"X-Ratelimit-Limit"}, []reading{{Remaining: 5, Window: time.Hour}}},
		"no fraction":    {policy.APIShopify, "X-Shopify-Shop-Api-Call-Limit: 32", []string{"X-Shopify-Shop-Api-Call-Limit"}, nil},
		"no duration":    {policy.APIOpenAI, "x-ratelimit-remaining-tokens: 5\nx-ratelimit-reset-tokens: -6m", []string{"X-Ratelimit-Reset-Tokens"}, []reading{{Quota: "tokens", Remaining: 5, Refills: true}}},
		"no remaining":   {policy.APIZendesk, "zendesk-ratelimit-x: total=3; resets=9", []string{"Zendesk-Ratelimit-X"}, nil},
		"cached":         {policy.APIIETF, "RateLimit: \"a\";r=5;t=3\nAge: 12", nil, nil},
	} {
		answer := read(test.api, http.StatusOK, test.header)
		assert.Equal(t, test.malformed, answer.Malformed, name)
		assert.Equal(t, test.quotas, answer.Quotas, name)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "2.5": 2500 * time.Millisecond, " 3 ": 3 * time.Second,
		"99999999999999999999999": upstream.Longest, "Mon, 05 Jan 2026 12:00:09 GMT": 9 * time.Second,
		"0": 0, "-5": 0, "": 0, "soon": 0, "1.2.3": 0, "Mon, 05 Jan 2026 11:00:00 GMT": 0, "NaN": 0, "1e3": 0,
	} {
		wait, ok := upstream.RetryAfter(headers("Retry-After: "+text), noon.Add(time.Hour))
		assert.Equal(t, want > 0, ok, text)
		if ok {
			assert.Equal(t, want, wait, text)
		}
	}
}

// Whatever a response holds, reading it ends, and tells of no time or number that
// anybody would have to be afraid of.
func FuzzRead(f *testing.F) {
	for _, lines := range []string{
		"x-ratelimit-remaining: 5\nx-ratelimit-reset: 1767616200\nretry-after: 2.0",
		"RateLimit: \"burst\";r=50;t=30, \"daily\";r=999\nRateLimit-Policy: \"burst\";q=100;w=60",
		"RateLimit: limit=100, remaining=50, reset=5\nRateLimit-Policy: 100;w=10",
		"X-Shopify-Shop-Api-Call-Limit: 32/40", "zendesk-ratelimit-a: total=100; remaining=99; resets=41",
		"x-ratelimit-remaining-tokens: 5\nx-ratelimit-reset-tokens: 6m0s",
		"anthropic-ratelimit-tokens-remaining: 5\nanthropic-ratelimit-tokens-reset: 2026-01-05T12:01:00Z",
		"X-RateLimit-Remaining: 4\nX-RateLimit-Reset-After: 1.125\nX-RateLimit-Bucket: a",
		"X-HubSpot-RateLimit-Interval-Milliseconds: 10000\nX-HubSpot-RateLimit-Remaining: 93",
		"Date: Fri, 02 Jan 1970 00:00:00 GMT\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT",
	} {
		for i := range policy.APIs() {
			f.Add(uint(i), http.StatusTooManyRequests, lines)
		}
	}
	apis := policy.APIs()
	f.Fuzz(func(t *testing.T, api uint, status int, lines string) {
		answer := read(apis[api%uint(len(apis))], status, lines)
		for _, q := range answer.Quotas {
			for _, d := range []time.Duration{q.Reset, q.Window} {
				require.GreaterOrEqual(t, d, time.Duration(0))
				require.LessOrEqual(t, d, upstream.Longest)
			}
			require.GreaterOrEqual(t, q.Limit, int64(0))
			require.LessOrEqual(t, q.Limit, int64(1e12))
			require.GreaterOrEqual(t, q.Remaining, int64(0))
			require.LessOrEqual(t, q.Remaining, int64(1e12))
			require.True(t, q.Limit == 0 || q.Remaining <= q.Limit)
		}
		require.LessOrEqual(t, len(answer.Quotas), 32)
		if r := answer.Refusal; r != nil {
			require.GreaterOrEqual(t, r.RetryAfter, time.Duration(0))
			require.LessOrEqual(t, r.RetryAfter, upstream.Longest)
			require.NotEqual(t, "unknown", r.Reason.String())
		}
	})
}

// There is a reader for every name that a policies file may have.
func TestEveryAPIHasAReader(t *testing.T) {
	t.Parallel()
	for _, api := range policy.APIs() {
		assert.NotPanics(t, func() { read(api, http.StatusTooManyRequests, "Retry-After: 1") }, api)
		assert.True(t, upstream.Knows(api), api)
	}
}
