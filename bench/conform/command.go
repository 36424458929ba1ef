package conform

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

type options struct {
	seed    uint64
	stories int
	step    time.Duration
}

// Run runs the command and returns its exit code.
var Run = harness.Command[options]{
	Name: "bench conform", Flags: tieFlags, Check: check, Measure: judgeAll,
	Help: `bench conform tells which promises limiters keep, Rampmeter's and its peers'.

  go run . conform              to the microsecond
  go run . conform -step 1ms    as exactly as a millisecond tells

Each flag can also be given as an environment variable, such as RAMPMETER_SEED
for -seed; the flag wins.
`,
}.Run

func tieFlags(flags *flag.FlagSet, o *options) {
	flags.Uint64Var(&o.seed, "seed", 0, "tell other stories")
	flags.IntVar(&o.stories, "stories", 20, "how many random stories to tell to each limiter")
	flags.DurationVar(&o.step, "step", time.Microsecond, "the finest time that limiters must tell apart")
}

func check(o *options, _ map[string]bool) error {
	if o.step < time.Microsecond || o.step > time.Second {
		return fmt.Errorf("-step is %s, but must be from 1us to 1s", o.step)
	}
	return harness.Within("stories", o.stories, 1, 0)
}

// judgeAll judges all contenders. A broken promise is a finding, not a failure.
func judgeAll(ctx context.Context, o *options, stdout, _ io.Writer) error {
	all := contenders()
	reports := make([]throttletest.Report, len(all))
	for i, c := range all {
		report, err := c.judge(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		reports[i] = report
	}
	_, err := writeText(all, reports, o).WriteTo(stdout)
	return err
}

// judge judges a contender on a server of its own.
func (c *contender) judge(ctx context.Context, o *options) (throttletest.Report, error) {
	clock := throttletest.NewClock(time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC))
	server, err := throttletest.StartEmbedded(throttletest.EmbeddedConfig{Clock: clock})
	if err != nil {
		return nil, err
	}
	defer server.Close()
	ask, err := c.open(server.Client())
	if err != nil {
		return nil, err
	}
	limiter := func(ctx context.Context, now time.Time, key string, cost int64) (throttletest.Answer, error) {
		clock.Set(now)
		a, err := ask(ctx, key, int(cost))
		told := throttletest.Answer{Started: a.Granted, Never: a.Never}
		if !a.Granted && !a.Never { // to the nearest step, for the sake of those that reckon in floats
			told.RetryAt = now.Add(a.RetryAfter.Round(o.step))
		}
		return told, err
	}
	report := throttletest.Judge(ctx, limiter, c.model, throttletest.ConformOptions{
		Begin: clock.Now(), Step: o.step, Stories: o.stories, Seed: o.seed, Cannot: c.cannot,
	})
	return report, ctx.Err()
}

// writeText prints a row for each promise, and below the table what the words leave out.
func writeText(all []contender, reports []throttletest.Report, o *options) *bytes.Buffer {
	text := &bytes.Buffer{}
	fmt.Fprintf(text, "%d per %s; %d stories, to %s; Rampmeter's limits come first.\n\n", count, period, o.stories, o.step)
	table := harness.NewTable(text)
	for _, c := range all {
		fmt.Fprintf(table, "\t%s", c.name)
	}
	fmt.Fprintln(table, "\t")
	for _, p := range throttletest.Promises() {
		fmt.Fprintf(table, "%-35s", p)
		for _, report := range reports {
			fmt.Fprintf(table, "\t%s", report.Of(p).Verdict)
		}
		fmt.Fprintln(table, "\t")
	}
	_ = table.Flush() // a bytes.Buffer takes everything
	for i, report := range reports {
		for _, f := range report {
			if f.Verdict != throttletest.Held {
				fmt.Fprintf(text, "\n%s, %s: %s\n  %s\n", all[i].name, f.Promise, f.Verdict,
					strings.ReplaceAll(f.Detail, "\n", "\n  "))
			}
		}
	}
	return text
}
