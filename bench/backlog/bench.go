package backlog

import (
	"context"
	"errors"
	"io"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// benchmark measures what the options ask for. Tables come as they are made, JSON when all
// is known.
func benchmark(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	session, err := harness.Open(ctx, o.redis, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	bench := &bench{Session: session, options: o, tables: stdout}
	if o.json {
		bench.tables = io.Discard
	}
	report, err := bench.run(ctx)
	err = errors.Join(report.failed(), err)
	if o.json {
		return errors.Join(harness.WriteJSON(stdout, report), err)
	}
	return err
}

// bench is one run: scenarios, in each of which the contenders take turns.
type bench struct {
	*harness.Session

	options *options
	tables  io.Writer

	bullMQ      *bullMQFiles // once it is installed
	withoutBull error        // why it can not be
}

// run measures until all is measured or ctx ends. With an error comes the report of what
// was measured until then.
func (b *bench) run(ctx context.Context) (*report, error) {
	report := &report{
		Redis:       b.Version,
		Workers:     b.options.workers,
		Concurrency: b.options.concurrency,
		Rounds:      b.options.rounds,
	}
	if err := report.writeHead(b.tables); err != nil {
		return report, err
	}
	b.Progress.Total = len(b.options.chosen) * len(b.options.contenders()) * b.options.rounds
	for _, s := range b.options.chosen {
		section := newSection(s)
		report.Scenarios = append(report.Scenarios, section)
		b.enter(ctx, section)
		err := b.measure(ctx, section)
		b.Progress.Clear()
		if err := errors.Join(section.writeText(b.tables), err); err != nil {
			return report, err
		}
	}
	return report, nil
}

// enter makes a result for every contender that can take part, and says why the
// others can not.
func (b *bench) enter(ctx context.Context, section *section) {
	for _, c := range b.options.contenders() {
		if reason := b.unfit(ctx, c, section.scenario); reason != "" {
			section.LeftOut = append(section.LeftOut, c.name+": "+reason)
			b.Progress.Finished += b.options.rounds
			continue
		}
		section.Results = append(section.Results, &result{Name: c.name, contender: c})
	}
}

// unfit tells why a contender can not take part, or nothing.
func (b *bench) unfit(ctx context.Context, c *contender, s *scenario) string {
	if reason := c.unfit(s); reason != "" || c.kind != bullMQ {
		return reason
	}
	if b.bullMQ == nil && b.withoutBull == nil {
		b.Progress.Show("installing BullMQ")
		b.bullMQ, b.withoutBull = installBullMQ(ctx)
	}
	if b.withoutBull != nil {
		return b.withoutBull.Error()
	}
	return ""
}

// measure lets every contender have its turn in each round.
func (b *bench) measure(ctx context.Context, section *section) error {
	defer section.summarize()
	for range b.options.rounds {
		for _, r := range section.Results {
			t := &turn{
				scenario: section.scenario, contender: r.contender,
				options: b.options, Session: b.Session, bullMQ: b.bullMQ,
			}
			err := t.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.Error = err.Error() // its own fault; the others are measured all the same
			} else {
				r.turns = append(r.turns, t)
			}
			b.Progress.Finished++
		}
	}
	return nil
}
