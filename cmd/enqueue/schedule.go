package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/producer"
)

const (
	scheduleAbout = `
enqueue schedule enqueues the tasks of a schedule file when their time comes, until
it is stopped with SIGTERM or SIGINT. Run it on several machines for safety: with
one Redis, each tick is enqueued once.

  schedule:
    - name: nightly-report
      cron: "30 3 * * *"        # minute hour day month weekday; six: seconds first
      timezone: Europe/Berlin   # optional, default UTC
      url: https://api.example.com/reports
      method: POST
      attributes: {installation: "42"}
    - name: sync
      cron: "*/10 * * * * *"
      type: crm:sync
      payload: {full: false}
      queue: low

An entry may have what a line of 'enqueue batch' may have, except id, process_at
and deadline. A tick at which Redis fails is logged and lost, the next one is not;
ticks that nobody was running for are not made up for. Tasks that would have to wait
are put into their policy's line straight away if -config names the policies.`

	scheduleExamples = `
  enqueue schedule -redis redis://:password@redis:6379/0 schedule.yaml

  Is the file right, and what comes next?
    enqueue schedule -check schedule.yaml
`
)

// scheduleFile is enqueue schedule.
type scheduleFile struct {
	server

	path      string
	checkOnly bool
}

func (c *scheduleFile) flags(fs *flag.FlagSet) {
	c.server.flags(fs, "to put tasks into line that would have to wait")
	fs.BoolVar(&c.checkOnly, "check", false, "only check the file and show the next time of each entry")
}

func (c *scheduleFile) check(positional []string) error {
	var err error
	c.path, err = one(positional, "no schedule file; name one, like schedule.yaml")
	return errors.Join(err, c.server.check())
}

func (c *scheduleFile) run(ctx context.Context, s streams) error {
	schedule, err := producer.ReadSchedule(c.path)
	if err != nil {
		return err
	}
	if c.checkOnly {
		return printNext(s.out, schedule, time.Now())
	}
	session, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer session.close()
	p, err := session.producer()
	if err != nil {
		return err
	}
	defer p.Close()
	scheduler, err := producer.NewScheduler(session.rdb, schedule, program.NewLogger(s.err, zapcore.InfoLevel, time.DateTime))
	if err != nil {
		return err
	}
	scheduler.EnqueueBy(p)
	return scheduler.Run(ctx)
}

func printNext(w io.Writer, schedule *producer.Schedule, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAME\tCRON\tNEXT\tIN\tTASK")
	for i := range schedule.Entries {
		entry := &schedule.Entries[i]
		next, err := entry.Next(now)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n",
			entry.Name, entry.Cron, next.Format(time.RFC3339), inAbout(next.Sub(now)), entry.Entry.Type)
	}
	return table.Flush()
}
