package overhead

import (
	"cmp"
	"flag"
	"fmt"
	"regexp"
	"slices"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

type options struct {
	redis       string
	only        regexp.Regexp
	tasks       int
	rounds      int
	concurrency int
	idle        bool
	json        bool
	cpuProfile  string
}

// mostTasks is the largest turn.
const mostTasks = 1_000_000

// command measures what a limit costs that never binds.
var command = harness.Command[options]{
	Name: "bench overhead", Flags: tieFlags, Check: check, Measure: benchmark,
	Help: `bench overhead measures what a limit costs that never binds: one worker process
works tasks off that have no policy, and tasks whose policies let them start at once.

  go run . overhead
  go run . overhead -only lane -cpuprofile cpu.out

Each flag can also be given as an environment variable, such as RAMPMETER_TASKS for
-tasks; the flag wins.
`,
}

// Run runs the command and returns its exit code.
var Run = command.Run

func tieFlags(flags *flag.FlagSet, o *options) {
	flags.StringVar(&o.redis, "redis", "", "measure on the Redis at this `URI`, whose database must be empty, instead of starting one")
	flags.TextVar(&o.only, "only", regexp.MustCompile(""), "measure only kinds of tasks whose name matches this `regexp`, besides those without a policy")
	flags.IntVar(&o.tasks, "tasks", 20_000, fmt.Sprintf("how many tasks in a turn, up to %d", mostTasks))
	flags.IntVar(&o.rounds, "rounds", 5, "how often each kind has its turn; the median counts")
	flags.IntVar(&o.concurrency, "concurrency", 20, "how many tasks the worker process holds at once")
	flags.BoolVar(&o.idle, "idle", false, "have the tasks do nothing, instead of a call of an HTTP API each")
	flags.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	flags.StringVar(&o.cpuProfile, "cpuprofile", "", "write a pprof CPU profile of the worker process to this `file`; its label kind tells the turns apart")
}

func check(o *options, _ map[string]bool) error {
	return cmp.Or(
		harness.Within("tasks", o.tasks, 1, mostTasks),
		harness.Within("rounds", o.rounds, 1, 0),
		harness.Within("concurrency", o.concurrency, 1, 10_000),
	)
}

func (o *options) kinds() []kind {
	return slices.DeleteFunc(kinds(), func(k kind) bool { return k != plain && !o.only.MatchString(string(k)) })
}
