package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// seen is what the API saw of a run.
type seen struct {
	naive       bool
	tasks, done int
	calls, over int
	attempts    int64
	took, ideal time.Duration
	used        float64 // of what the quota allowed from the first call to the last, in percent
}

func look(api *api, o *options, told tally) *seen {
	s := &seen{
		naive: o.naive, tasks: o.tasks, done: api.Accepted(),
		calls: api.Count(), over: api.Over(), attempts: told.Attempts,
		// The burst at once, and the others at the quota's pace.
		ideal: time.Duration((int64(o.tasks) - quota.Burst) * int64(quota.Window) / quota.Limit),
	}
	var accepted []time.Time
	for _, call := range api.Calls() {
		if !call.Over {
			accepted = append(accepted, call.Arrived)
		}
	}
	if len(accepted) > 0 {
		s.took = accepted[len(accepted)-1].Sub(accepted[0])
		s.used = 100 * throttletest.Used(accepted, quota.Burst, quota.Limit, quota.Window)
	}
	return s
}

func (s *seen) print(w io.Writer) {
	how := "with Rampmeter"
	if s.naive {
		how = "with the usual retry-after error"
	}
	fmt.Fprintf(w, "%s, the quota being %d calls per %s and %d at once:\n\n",
		how, quota.Limit, quota.Window, quota.Burst)
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
