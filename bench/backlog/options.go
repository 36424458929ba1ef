package backlog

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

type options struct {
	redis       string
	scenarios   string
	only        regexp.Regexp
	tasks       int
	rate        string
	burst       int
	during      bool
	rounds      int
	workers     int
	concurrency int
	stopAfter   time.Duration
	timeout     time.Duration
	quick       bool
	json        bool

	chosen []*scenario
}

// quickShare is which part of the tasks -quick leaves.
const quickShare = 20

// mostTasks is the largest backlog.
const mostTasks = 1_000_000

// command measures backlogs.
var command = harness.Command[options]{
	Name: "bench backlog", Help: help(), Flags: tieFlags, Check: check, Measure: benchmark,
}

// Run runs the command and returns its exit code.
var Run = command.Run

func tieFlags(flags *flag.FlagSet, o *options) {
	flags.StringVar(&o.redis, "redis", "", "measure on the Redis at this `URI`, whose database must be empty, instead of starting one")
	flags.StringVar(&o.scenarios, "scenarios", strings.Join(scenarioNames(), ","), "which scenarios: a `list`")
	flags.TextVar(&o.only, "only", regexp.MustCompile(""), "measure only contenders whose name matches this `regexp`")
	flags.IntVar(&o.tasks, "tasks", 0, fmt.Sprintf("how many tasks, up to %d; 0 means each scenario's own number", mostTasks))
	flags.StringVar(&o.rate, "rate", "", "the limit's `rate`, as in 2000/s; empty means each scenario's own")
	flags.IntVar(&o.burst, "burst", 0, "how many a token bucket lets start at once; 0 means a tenth of the rate's count")
	flags.BoolVar(&o.during, "during", false, "enqueue half of each tenant's tasks while the workers work, instead of all before")
	flags.IntVar(&o.rounds, "rounds", 1, "how often each contender has its turn; the median counts")
	flags.IntVar(&o.workers, "workers", 2, "worker processes")
	flags.IntVar(&o.concurrency, "concurrency", 20, "how many tasks a worker process holds at once")
	flags.DurationVar(&o.stopAfter, "for", 0, "end a turn so long after every task was seen once, or after its start where tasks are not put off; "+
		"0 means when all are done")
	flags.DurationVar(&o.timeout, "timeout", 0, "end a turn that is not done by then; 0 means twice as long as the limit makes it, and half a minute")
	flags.BoolVar(&o.quick, "quick", false, fmt.Sprintf("leave one of %d tasks in each scenario, to see that it works", quickShare))
	flags.BoolVar(&o.json, "json", false, "print JSON instead of tables")
}

func check(o *options, _ map[string]bool) error {
	switch {
	case o.tasks > 0 && o.quick:
		return errors.New("-quick and -tasks both say how many tasks")
	case o.stopAfter < 0 || o.timeout < 0:
		return errors.New("-for and -timeout must not be negative")
	case len(o.contenders()) == 0:
		return fmt.Errorf("-only: no contender matches %q", &o.only)
	}
	return cmp.Or(
		harness.Within("tasks", o.tasks, 0, mostTasks),
		harness.Within("burst", o.burst, 0, mostTasks),
		harness.Within("rounds", o.rounds, 1, 0),
		harness.Within("workers", o.workers, 1, 64),
		harness.Within("concurrency", o.concurrency, 1, 10_000),
		o.choose(),
	)
}

// choose settles the scenarios and their sizes.
func (o *options) choose() error {
	all := scenarios()
	for name := range strings.SplitSeq(o.scenarios, ",") {
		i := slices.IndexFunc(all, func(s *scenario) bool { return s.name == strings.TrimSpace(name) })
		if i < 0 {
			return fmt.Errorf("-scenarios: there is no %q, only %s", name, strings.Join(scenarioNames(), ", "))
		}
		o.chosen = append(o.chosen, all[i])
	}
	for _, s := range o.chosen {
		if err := o.fit(s); err != nil {
			return err
		}
	}
	return nil
}

// fit gives a scenario the size and the rate that are asked for.
func (o *options) fit(s *scenario) error {
	switch {
	case o.tasks > 0:
		s.resize(o.tasks)
	case o.quick:
		s.resize(max(s.tasks()/quickShare, s.enough()))
	}
	if o.rate != "" {
		rate, err := policy.ParseRate(o.rate)
		if err != nil {
			return fmt.Errorf("-rate: %w", err)
		}
		s.limit.Count, s.limit.Period = int(rate.Count), rate.Period
	}
	if s.limit.Algorithm == policy.TokenBucket {
		s.limit.Burst = cmp.Or(o.burst, max(1, s.limit.Count/10))
	}
	return nil
}

func (o *options) contenders() []*contender {
	return slices.DeleteFunc(contenders(), func(c *contender) bool { return !o.only.MatchString(c.name) })
}

// timeoutOf is how long a turn of the scenario may last.
func (o *options) timeoutOf(s *scenario) time.Duration {
	if o.timeout > 0 {
		return o.timeout
	}
	return 2*s.ideal() + 30*time.Second
}

func scenarioNames() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

func help() string {
	var text strings.Builder
	text.WriteString(`bench backlog measures what becomes of tasks that are more than their limit lets
start, side by side: asynq without a limit, with the usual retry-after error,
BullMQ, and Rampmeter, waiting and parked.

  go run . backlog                        every scenario
  go run . backlog -quick                 with few tasks, to see that it works
  go run . backlog -scenarios tenants -only 'asynq|rampmeter'
  go run . backlog -scenarios tenants -tasks 200000 -for 1m

`)
	for _, s := range scenarios() {
		fmt.Fprintf(&text, "  %-14s %6d tasks at %s: %s\n", s.name, s.tasks(), s.limit.rate(), s.about)
	}
	text.WriteString(`
BullMQ needs node and npm, which installs it into .tools/ the first time; where
they are missing it is left out. Each flag can also be given as an environment
variable, such as RAMPMETER_TASKS for -tasks; the flag wins.
`)
	return text.String()
}
