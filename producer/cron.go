package producer

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
)

// ticks are the instants of one cron expression in its timezone. It is the
// gocron.Cron of its job, and so knows which tick gocron has set its timer for:
// the name that all schedulers give a tick, however late or early their clocks
// let them come to it.
type ticks struct {
	cron       gocron.Cron
	expression string
	location   *time.Location
	everyHour  bool

	mu    sync.Mutex
	armed time.Time
}

// newTicks reads a cron expression of five fields, or six with seconds first.
func newTicks(expression string, location *time.Location) (*ticks, error) {
	fields := strings.Fields(expression)
	hour := 1
	switch len(fields) {
	case 5:
	case 6:
		hour = 2
	default:
		return nil, fmt.Errorf(`%q has %d fields; write five (minute hour day month weekday), as in "30 3 * * *", or six with seconds first`,
			expression, len(fields))
	}
	if strings.Contains(expression, "=") {
		return nil, fmt.Errorf("%q sets a variable; name the zone in timezone", expression)
	}
	t := &ticks{
		cron:       gocron.NewDefaultCron(len(fields) == 6),
		expression: expression,
		location:   location,
		everyHour:  strings.HasPrefix(fields[hour], "*"),
	}
	err := t.IsValid(expression, location, time.Now())
	switch {
	case errors.Is(err, gocron.ErrCronJobInvalid):
		return nil, fmt.Errorf("%q never comes, like the 30th of February", expression)
	case err != nil:
		lines := strings.Split(err.Error(), "\n") // gocron's words, then those of the parser
		return nil, fmt.Errorf("%q: %s", expression, lines[len(lines)-1])
	}
	return t, nil
}

// IsValid is asked by gocron with its own location; the entry's is what counts.
func (t *ticks) IsValid(_ string, _ *time.Location, now time.Time) error {
	return t.cron.IsValid(t.expression, t.location, now)
}

// Next returns the tick after last and remembers it as the one to come. When
// clocks go back an hour comes twice: what is not hourly anyway does not run
// again in the second one.
func (t *ticks) Next(last time.Time) time.Time {
	next := t.cron.Next(last)
	for !t.everyHour && !next.IsZero() && repeated(next, t.location) {
		next = t.cron.Next(next)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = next
	return next
}

// current is the tick whose turn it is, while gocron has not asked for the one
// after it.
func (t *ticks) current() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.armed
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
