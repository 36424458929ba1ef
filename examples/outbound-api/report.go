package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// seen is what the API saw of a run.
type seen struct {
	naive       bool
	tasks, done int
	calls, over int
	attempts    int
	took, ideal time.Duration
	used        float64 // of the API's full windows, in percent
}

func look(api *api, o *options, told tally) *seen {
	s := &seen{
		naive: o.naive, tasks: o.tasks, done: api.Accepted(),
		calls: api.Count(), over: api.Over(), attempts: told.Attempts,
		// At the quota's pace, so many tasks take so long.
		ideal: time.Duration(int64(o.tasks) * int64(quota.Window) / quota.Limit),
	}
	var accepted []time.Time
	for _, call := range api.Calls() {
		if !call.Over {
			accepted = append(accepted, call.Arrived)
		}
	}
	if len(accepted) > 0 {
		s.took = accepted[len(accepted)-1].Sub(accepted[0])
		s.used = used(accepted, api.started)
	}
	return s
}

// used is how much of the quota was used in the API's windows that lie whole
// between the first call and the last, in percent.
func used(accepted []time.Time, started time.Time) float64 {
	windowOf := func(t time.Time) int64 { return int64(t.Sub(started) / quota.Window) }
	first, last := windowOf(accepted[0]), windowOf(accepted[len(accepted)-1])
	calls, windows := 0, last-first-1
	for _, t := range accepted {
		if w := windowOf(t); w > first && w < last {
			calls++
		}
	}
	if windows < 1 {
		return 0
	}
	return 100 * float64(calls) / float64(windows*quota.Limit)
}

func (s *seen) print(w io.Writer) {
	how := "with Rampmeter"
	if s.naive {
		how = "with the usual retry-after error"
	}
	fmt.Fprintf(w, "%s, the quota being %d calls per %s:\n\n", how, quota.Limit, quota.Window)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "tasks done\t%d of %d\t\n", s.done, s.tasks)
	fmt.Fprintf(table, "calls made\t%d\t\n", s.calls)
	fmt.Fprintf(table, "calls over the quota\t%d\t\n", s.over)
	fmt.Fprintf(table, "quota used\t%.1f %%\t\n", s.used)
	fmt.Fprintf(table, "attempts per task\t%.2f\t\n", float64(s.attempts)/float64(max(1, s.done)))
	fmt.Fprintf(table, "time\t%.1f s\t\n", s.took.Seconds())
	fmt.Fprintf(table, "ideal\t%.1f s\t\n", s.ideal.Seconds())
	_ = table.Flush()
}
