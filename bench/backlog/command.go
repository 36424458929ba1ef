package backlog

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/rig"
)

// Run measures what the args ask for and returns the exit code. An interrupt still
// prints what was measured until then.
func Run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(stdout)
		return rig.ExitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\nRun 'bench backlog -h' for help.\n", err)
		return rig.ExitUsage
	}
	if err := benchmark(ctx, opts, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return rig.ExitFailed
	}
	return rig.ExitOK
}

func benchmark(ctx context.Context, opts *options, stdout, stderr io.Writer) (err error) {
	server, stop, err := rig.OpenRedis(ctx, opts.redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	report, err := (&bench{redis: server, options: opts, progress: rig.NewProgress(stderr)}).run(ctx)
	if opts.json {
		return errors.Join(report.writeJSON(stdout), err)
	}
	return errors.Join(report.writeText(stdout), err)
}

// bench is one run: scenarios, in each of which the contenders take turns.
type bench struct {
	redis    *redis.Options
	options  *options
	progress *rig.Progress

	bullMQ      *bullMQFiles // once it is installed
	withoutBull error        // why it can not be
}

// run measures until all is measured or ctx ends. With an error comes the report of
// what was measured until then.
func (b *bench) run(ctx context.Context) (*report, error) {
	defer b.progress.Done()
	report := &report{Workers: b.options.workers, Concurrency: b.options.concurrency, Rounds: b.options.rounds}
	admin := redis.NewClient(b.redis)
	report.Redis = rig.RedisVersion(ctx, admin)
	_ = admin.Close()

	contenders := b.options.contenders()
	b.progress.Total = len(b.options.chosen) * len(contenders) * b.options.rounds
	for _, s := range b.options.chosen {
		section := &section{
			Name: s.name, About: s.about, Tasks: s.tasks(), Limit: s.limit.rate(), Ideal: s.ideal().Seconds(),
		}
		report.Scenarios = append(report.Scenarios, section)
		if err := b.measure(ctx, s, contenders, section); err != nil {
			return report, err
		}
	}
	return report, nil
}

// measure lets every contender have its turn in each round.
func (b *bench) measure(ctx context.Context, s *scenario, contenders []*contender, section *section) error {
	var results []*result
	turns := map[*result][]*turn{}
	for _, c := range contenders {
		if reason := b.unfit(ctx, c, s); reason != "" {
			section.LeftOut = append(section.LeftOut, c.name+": "+reason)
			b.progress.Finished += b.options.rounds
			continue
		}
		results = append(results, &result{Name: c.name, contender: c})
	}
	for range b.options.rounds {
		for _, r := range results {
			t := &turn{
				scenario: s, contender: r.contender, options: b.options, redis: b.redis, bullMQ: b.bullMQ, progress: b.progress,
			}
			err := t.run(ctx)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.Error = err.Error() // its own fault; the others are measured all the same
			} else {
				turns[r] = append(turns[r], t)
			}
			b.progress.Finished++
		}
	}
	for _, r := range results {
		r.summarize(turns[r])
	}
	section.Results = results
	return nil
}

// unfit tells why a contender can not take part, or nothing.
func (b *bench) unfit(ctx context.Context, c *contender, s *scenario) string {
	if reason := c.unfit(s); reason != "" || c.kind != bullMQ {
		return reason
	}
	if b.bullMQ == nil && b.withoutBull == nil {
		b.progress.Show("installing BullMQ")
		b.bullMQ, b.withoutBull = installBullMQ(ctx)
	}
	if b.withoutBull != nil {
		return b.withoutBull.Error()
	}
	return ""
}
