package httprequest

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2024, 5, 17, 12, 0, 0, 0, time.UTC)
	h := &handler{cfg: Config{DefaultRetryAfter: 4 * time.Second, MaxRetryAfter: time.Minute}}
	const byDefault, bound = 4 * time.Second, time.Minute
	for name, test := range map[string]struct {
		value, date string
		want        time.Duration
	}{
		"absent":              {"", "", byDefault},
		"whole seconds":       {"3", "", 3 * time.Second},
		"blanks around":       {" 3 ", "", 3 * time.Second},
		"Shopify's 2.0":       {"2.0", "", 2 * time.Second},
		"fraction":            {"0.25", "", 250 * time.Millisecond},
		"inexact fraction":    {"2.01", "", 2010 * time.Millisecond},
		"no digit before":     {".5", "", 500 * time.Millisecond},
		"zero":                {"0", "", byDefault},
		"negative":            {"-3", "", byDefault},
		"at the bound":        {"60", "", bound},
		"above the bound":     {"61", "", bound},
		"above a Duration":    {"99999999999999999999", "", bound},
		"above a float":       {"1" + strings.Repeat("0", 400), "", bound},
		"exponent":            {"1e1", "", byDefault},
		"words":               {"a while", "", byDefault},
		"infinity":            {"Inf", "", byDefault},
		"not a number":        {"NaN", "", byDefault},
		"hexadecimal":         {"0x10", "", byDefault},
		"duration":            {"5s", "", byDefault},
		"two points":          {"1.2.3", "", byDefault},
		"a point":             {".", "", byDefault},
		"date by Date":        {"Mon, 01 Jan 2001 00:00:30 GMT", "Mon, 01 Jan 2001 00:00:10 GMT", 20 * time.Second},
		"date by our clock":   {"Fri, 17 May 2024 12:00:05 GMT", "", 5 * time.Second},
		"senseless Date":      {"Fri, 17 May 2024 12:00:05 GMT", "today", 5 * time.Second},
		"RFC 850":             {"Friday, 17-May-24 12:00:05 GMT", "", 5 * time.Second},
		"asctime":             {"Fri May 17 12:00:05 2024", "", 5 * time.Second},
		"past date":           {"Mon, 01 Jan 2001 00:00:10 GMT", "Mon, 01 Jan 2001 00:00:30 GMT", byDefault},
		"the very same date":  {"Mon, 01 Jan 2001 00:00:10 GMT", "Mon, 01 Jan 2001 00:00:10 GMT", byDefault},
		"date above bound":    {"Mon, 01 Jan 2001 10:00:00 GMT", "Mon, 01 Jan 2001 00:00:10 GMT", bound},
		"date above Duration": {"Fri, 31 Dec 9999 23:59:59 GMT", "", bound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			header.Set("Retry-After", test.value)
			header.Set("Date", test.date)
			assert.Equal(t, test.want, h.retryAfter(header, now))
		})
	}
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		from, to string
		want     bool
	}{
		{"https://a.example/x", "https://a.example/y", true},
		{"https://a.example", "https://A.EXAMPLE.:443", true},
		{"http://a.example", "https://a.example", true},
		{"https://a.example", "http://a.example", false},
		{"http://a.example:8080", "https://a.example", false},
		{"http://a.example:8080", "http://a.example:8081", false},
		{"https://a.example", "https://b.a.example", false},
		{"https://a.example", "https://example", false},
	} {
		from, err := url.Parse(test.from)
		require.NoError(t, err)
		to, err := url.Parse(test.to)
		require.NoError(t, err)
		assert.Equal(t, test.want, sameOrigin(from, to), "%s to %s", test.from, test.to)
	}
}

func TestHostRulesBelow(t *testing.T) {
	t.Parallel()
	rules, err := parseHostRules([]string{"*.example.com", "[::1]:8080", "::2"})
	require.NoError(t, err)
	for raw, want := range map[string]bool{
		"https://api.example.com":     true,
		"https://a.b.Example.com.:99": true,
		"https://example.com":         false,
		"https://xexample.com":        false,
		"http://[::1]:8080":           true,
		"http://[::1]":                false,
		"http://[::2]:1":              true,
	} {
		u, err := url.Parse(raw)
		require.NoError(t, err)
		assert.Equal(t, want, rules.check(u) == nil, raw)
	}
}
