package producer

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// ticks are the instants of one cron expression in its timezone.
type ticks struct {
	cron      cron.Schedule
	location  *time.Location
	everyHour bool
}

var cronFields = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// newTicks reads a cron expression of five fields, or six with seconds first.
func newTicks(expression string, location *time.Location) (*ticks, error) {
	fields := strings.Fields(expression)
	if len(fields) != 5 && len(fields) != 6 {
		return nil, fmt.Errorf(`%q has %d fields; write five (minute hour day month weekday), as in "30 3 * * *", or six with seconds first`,
			expression, len(fields))
	}
	if strings.Contains(expression, "=") {
		return nil, fmt.Errorf("%q sets a variable; name the zone in timezone", expression)
	}
	schedule, err := cronFields.Parse("CRON_TZ=" + location.String() + " " + expression)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", expression, err)
	}
	if schedule.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("%q never comes, like the 30th of February", expression)
	}
	return &ticks{cron: schedule, location: location, everyHour: strings.HasPrefix(fields[len(fields)-4], "*")}, nil
}

// after returns the first tick after an instant, in UTC. When clocks go back an hour comes
// twice: what is not hourly anyway does not run again in the second one.
func (t *ticks) after(instant time.Time) time.Time {
	next := t.cron.Next(instant.UTC())
	for !t.everyHour && !next.IsZero() && repeated(next, t.location) {
		next = t.cron.Next(next)
	}
	return next
}

// repeated reports whether clocks there showed the same time a while before,
// because they were set back in between.
func repeated(at time.Time, location *time.Location) bool {
	const longestRepeat = 3 * time.Hour
	at = at.In(location)
	_, offset := at.Zone()
	_, before := at.Add(-longestRepeat).Zone()
	if before <= offset {
		return false
	}
	earlier := at.Add(time.Duration(offset-before) * time.Second)
	return earlier.Format(time.DateTime) == at.Format(time.DateTime)
}
