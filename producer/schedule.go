package producer

import (
	"fmt"
	"regexp"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Schedule is tasks that come again and again.
type Schedule struct {
	Entries []ScheduleEntry
}

// ScheduleEntry is one task and its times.
type ScheduleEntry struct {
	// Name is unique in its schedule. Schedulers on one Redis that know the same
	// name take turns at it, so it says which entries are the same one.
	Name string
	// Cron is five fields, minute to weekday, or six with seconds first.
	Cron string
	// Timezone is what the fields are meant in, as in Europe/Berlin; UTC when
	// empty. A time that clocks skip in spring is left out that day; in autumn,
	// a time that comes twice counts once, unless the entry is for every hour.
	Timezone string
	// Entry is the task. It may have no ID (each tick gives it one), no ProcessAt
	// and no Deadline, which can be right but once.
	Entry Entry
}

// Validate returns nil or a [*policy.ConfigError] with every problem.
func (s *Schedule) Validate() error {
	if problems := s.problems(); len(problems) > 0 {
		return &policy.ConfigError{Problems: problems}
	}
	return nil
}

func (s *Schedule) problems() []policy.Problem {
	var found []policy.Problem
	add := func(path, format string, args ...any) {
		found = append(found, policy.Problem{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if len(s.Entries) == 0 {
		add("schedule", "is empty; give at least one entry")
	}
	first := map[string]int{}
	for i := range s.Entries {
		entry := &s.Entries[i]
		for _, problem := range entry.problems() {
			add(fieldPath(i, problem.Path), "%s", problem.Message)
		}
		if other, twice := first[entry.Name]; twice {
			add(fieldPath(i, "name"), "%q is the name of schedule[%d] already", entry.Name, other)
		} else if entry.Name != "" {
			first[entry.Name] = i
		}
	}
	return found
}

// fieldPath is where a field is in the file; an empty field is the whole entry.
func fieldPath(entry int, field string) string {
	path := fmt.Sprintf("schedule[%d]", entry)
	if field != "" {
		path += "." + field
	}
	return path
}

// goodName is what fits a Redis key and a task ID without a doubt where it ends.
var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

func (e *ScheduleEntry) problems() FieldErrors {
	var problems FieldErrors
	switch {
	case e.Name == "":
		problems.add("name", "missing; it is what schedulers agree on")
	case !goodName.MatchString(e.Name):
		problems.add("name", "%q may have letters, digits, dots, dashes and underscores, at most 100", e.Name)
	}
	if e.Cron == "" {
		problems.add("cron", `missing; write five fields, as in "30 3 * * *"`)
	}
	if location, err := e.location(); err != nil {
		problems.add("timezone", "%q is unknown; write it like Europe/Berlin", e.Timezone)
	} else if e.Cron != "" {
		if _, err := newTicks(e.Cron, location); err != nil {
			problems.add("cron", "%s", err)
		}
	}
	for _, fixed := range []struct {
		field string
		given bool
	}{
		{"id", e.Entry.ID != ""},
		{"process_at", !e.Entry.ProcessAt.IsZero()},
		{"deadline", !e.Entry.Deadline.IsZero()},
	} {
		if fixed.given {
			problems.add(fixed.field, "can be right for one tick only; leave it out")
		}
	}
	e.Entry.validate(&problems)
	return problems
}

// Next returns the first tick after an instant, in UTC. Its error is that of a
// bad Cron or Timezone.
func (e *ScheduleEntry) Next(after time.Time) (time.Time, error) {
	ticks, err := e.ticks()
	if err != nil {
		return time.Time{}, err
	}
	return ticks.after(after), nil
}

func (e *ScheduleEntry) ticks() (*ticks, error) {
	location, err := e.location()
	if err != nil {
		return nil, err
	}
	return newTicks(e.Cron, location)
}

func (e *ScheduleEntry) location() (*time.Location, error) {
	return time.LoadLocation(e.Timezone) // "" is UTC
}
