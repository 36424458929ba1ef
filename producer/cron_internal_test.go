package producer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTicks(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return parsed.UTC()
	}
	for name, c := range map[string]struct {
		cron, zone, from string
		want             []string
	}{
		"every minute": {"* * * * *", "UTC", "2026-03-01T10:00:30Z",
			[]string{"2026-03-01T10:01:00Z", "2026-03-01T10:02:00Z"}},
		"every second": {"* * * * * *", "UTC", "2026-03-01T10:00:30.5Z",
			[]string{"2026-03-01T10:00:31Z", "2026-03-01T10:00:32Z"}},
		"in a timezone": {"0 9 * * *", "America/New_York", "2026-03-01T00:00:00Z",
			[]string{"2026-03-01T14:00:00Z", "2026-03-02T14:00:00Z"}},
		"clocks go forward over it": {"30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"}},
		"clocks go back over it": {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		"clocks go back, seen from in between": {"30 2 * * *", "Europe/Berlin", "2026-10-25T00:45:00Z",
			[]string{"2026-10-26T01:30:00Z"}},
		"clocks go back over an hourly one": {"30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			location, err := time.LoadLocation(c.zone)
			require.NoError(t, err)
			schedule, err := newTicks(c.cron, location)
			require.NoError(t, err)
			last := at(c.from)
			for _, want := range c.want {
				last = schedule.after(last)
				require.Equal(t, at(want), last)
			}
		})
	}
}

func TestNewTicksRefuses(t *testing.T) {
	t.Parallel()
	for cron, says := range map[string]string{
		"":                   "has 0 fields",
		"* * * *":            "has 4 fields; write five",
		"* * * * * * *":      "has 7 fields",
		"@hourly":            "has 1 fields",
		"@every 1h":          "has 2 fields",
		"99 * * * *":         "above maximum (59)",
		"x * * * *":          "failed to parse int",
		"0 0 30 2 *":         "never comes",
		"TZ=UTC * * * * *":   "sets a variable",
		"* * * * TZ=x":       "sets a variable",
		"CRON_TZ=x * * * * ": "sets a variable",
	} {
		_, err := newTicks(cron, time.UTC)
		assert.ErrorContains(t, err, says, cron)
	}
}
