package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]policy.Rate{
		"10/s":            {Count: 10, Period: time.Second},
		"100/15m":         {Count: 100, Period: 15 * time.Minute},
		"5000/1h":         {Count: 5000, Period: time.Hour},
		"1/1d":            {Count: 1, Period: day},
		"7/d":             {Count: 7, Period: day},
		"20/1h30m":        {Count: 20, Period: 90 * time.Minute},
		"20/1d12h":        {Count: 20, Period: 36 * time.Hour},
		"3/1.5h":          {Count: 3, Period: 90 * time.Minute},
		"3/0.5d":          {Count: 3, Period: 12 * time.Hour},
		"1/us":            {Count: 1, Period: time.Microsecond},
		"2/15µs":          {Count: 2, Period: 15 * time.Microsecond},
		"2/15μs":          {Count: 2, Period: 15 * time.Microsecond},
		"2/2000ns":        {Count: 2, Period: 2 * time.Microsecond},
		"9/250ms":         {Count: 9, Period: 250 * time.Millisecond},
		"10000000/366d":   {Count: 10_000_000, Period: 366 * day},
		"1/365d23h59m60s": {Count: 1, Period: 366 * day},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			rate, err := policy.ParseRate(text)
			require.NoError(t, err)
			assert.Equal(t, want, rate)
			again, err := policy.ParseRate(rate.String())
			require.NoError(t, err)
			assert.Equal(t, rate, again, "a rate reads what it writes")
		})
	}
}

func TestParseRateRejects(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "the period is missing; write tokens per period, as in 10/s or 5000/1h",
		"10":                     "the period is missing",
		"10/":                    "the period is missing",
		"/s":                     `"" is not a whole number in plain digits`,
		"10 / s":                 "remove the spaces",
		"0/s":                    "the count must be at least 1",
		"-1/s":                   "the count must be at least 1",
		"10000001/s":             "the count must be at most 10000000",
		"99999999999999999999/s": "the count must be at most 10000000",
		"1.5/s":                  `"1.5" is not a whole number in plain digits; lengthen the period instead: 3/2s`,
		"5k/h":                   `"5k" is not a whole number in plain digits`,
		"+5/h":                   `"+5" is not a whole number`,
		"1_000/h":                `"1_000" is not a whole number`,
		"0x10/h":                 `"0x10" is not a whole number`,
		"1e3/h":                  `"1e3" is not a whole number`,
		"10/15":                  "the duration has no unit; add one of us, ms, s, m, h, d",
		"10/1h30":                "the duration has no unit",
		"10/min":                 `the unit "min" is unknown; write m`,
		"10/2 hours":             "remove the spaces",
		"10/2Hours":              `the unit "Hours" is unknown; write h`,
		"10/week":                `the unit "week" is unknown; write 7d`,
		"10/y":                   `the unit "y" is unknown; use one of us, ms, s, m, h, d`,
		"10/s/s":                 `the unit "s/s" is unknown`,
		"10/0s":                  "the period must be longer than zero",
		"10/0":                   "the period must be longer than zero",
		"10/-1s":                 "the period must be longer than zero",
		"10/-":                   "there is no duration",
		"10/1.2.3s":              "there is no duration",
		"10/+1s":                 "there is no duration",
		"10/1500ns":              "the period must be whole microseconds, at least 1us",
		"10/0.0001ns":            "there is less than a microsecond",
		"10/1.00000000001us":     "there is less than a microsecond",
		"10/367d":                "the period must be at most 366d",
		"10/99999999999999999d":  "the period must be at most 366d",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			rate, err := policy.ParseRate(text)
			require.ErrorContains(t, err, want)
			assert.ErrorContains(t, err, "rate \"", "it says what it read")
			assert.Zero(t, rate)
		})
	}
}

func FuzzParseRate(f *testing.F) {
	for _, seed := range []string{"10/s", "5000/1h30m", "1/365d23h", "-1/0.5µs", "1/1/1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rate, err := policy.ParseRate(text)
		if err != nil {
			return
		}
		again, err := policy.ParseRate(rate.String())
		require.NoError(t, err)
		assert.Equal(t, rate, again)
	})
}
