package overhead

import (
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

type options struct {
	redis       string
	only        string
	tasks       int
	rounds      int
	concurrency int
	idle        bool
	json        bool
	cpuProfile  string

	pattern *regexp.Regexp
}

// mostTasks is the largest turn.
const mostTasks = 1_000_000

func newFlags(o *options) *flag.FlagSet {
	flags := flag.NewFlagSet("bench overhead", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.redis, "redis", "", "measure on the Redis at this `URI`, whose database must be empty, instead of starting one")
	flags.StringVar(&o.only, "only", "", "measure only kinds of tasks whose name matches this `regexp`, besides those without a policy")
	flags.IntVar(&o.tasks, "tasks", 20_000, fmt.Sprintf("how many tasks in a turn, up to %d", mostTasks))
	flags.IntVar(&o.rounds, "rounds", 5, "how often each kind has its turn; the median counts")
	flags.IntVar(&o.concurrency, "concurrency", 20, "how many tasks the worker process holds at once")
	flags.BoolVar(&o.idle, "idle", false, "have the tasks do nothing, instead of a call of an HTTP API each")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flags.StringVar(&o.cpuProfile, "cpuprofile", "", "write a pprof CPU profile of the worker process to this `file`; its label kind tells the turns apart")
	return flags
}

func parseOptions(args []string, getenv func(string) string) (_ *options, err error) {
	o := &options{}
	if _, err := harness.ParseFlags(newFlags(o), args, getenv); err != nil {
		return nil, err
	}
	switch {
	case o.tasks < 1 || o.tasks > mostTasks:
		return nil, fmt.Errorf("-tasks is %d, but must be from 1 to %d", o.tasks, mostTasks)
	case o.rounds < 1:
		return nil, fmt.Errorf("-rounds is %d, but must be at least 1", o.rounds)
	case o.concurrency < 1 || o.concurrency > 10_000:
		return nil, fmt.Errorf("-concurrency is %d, but must be from 1 to 10000", o.concurrency)
	}
	if o.pattern, err = regexp.Compile(o.only); err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	return o, nil
}

func (o *options) kinds() []kind {
	return slices.DeleteFunc(kinds(), func(k kind) bool { return k != plain && !o.pattern.MatchString(k.name) })
}

func printHelp(w io.Writer) {
	fmt.Fprint(w, `bench overhead measures what a limit costs that never binds: one worker process
works tasks off that have no policy, and tasks whose policies let them start at once.

  go run . overhead
  go run . overhead -only lane -cpuprofile cpu.out

Each flag can also be given as an environment variable, such as RAMPMETER_TASKS for
-tasks; the flag wins.

`)
	flags := newFlags(&options{})
	flags.SetOutput(w)
	flags.PrintDefaults()
}
