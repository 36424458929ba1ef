package decisions

import (
	"cmp"
	"flag"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

type options struct {
	redis      string
	rounds     int
	slice      time.Duration
	callers    numbers
	keys       numbers
	only       regexp.Regexp
	pool       int
	quick      bool
	json       bool
	cpuProfile string
}

// What -quick changes, unless it is said otherwise.
const (
	quickRounds = 5
	quickSlice  = 40 * time.Millisecond
)

// command measures decisions.
var command = harness.Command[options]{
	Name: "bench", Flags: tieFlags, Check: check, Measure: benchmark,
	Help: `bench measures what a decision costs, side by side with well-known peers.

  go run .                              everything, in some minutes
  go run . -quick                       everything, in under 40 seconds
  go run . -only token -callers 1,100   two levels of the token buckets
  go run . -json > bench.json           for a program to read
  go run . backlog -h                   another part: what becomes of a backlog
  go run . conform -h                   another part: which promises a limiter keeps

Each flag can also be given as an environment variable, such as RAMPMETER_ROUNDS
for -rounds; the flag wins.
`,
}

// Run runs the command and returns its exit code.
var Run = command.Run

func tieFlags(flags *flag.FlagSet, o *options) {
	o.callers, o.keys = numbers{1, 10, 100, 500}, numbers{1, 100_000}
	flags.StringVar(&o.redis, "redis", "", "measure on the Redis at this `URI`, whose database must be empty, instead of starting one")
	flags.IntVar(&o.rounds, "rounds", 9, "how often each contender has its turn; the median counts")
	flags.DurationVar(&o.slice, "slice", 300*time.Millisecond, "how long a turn is")
	flags.Var(&o.callers, "callers", "how many callers at once: a `list`")
	flags.Var(&o.keys, "keys", "over how many keys: a `list`")
	flags.TextVar(&o.only, "only", regexp.MustCompile(""), "measure only contenders whose name matches this `regexp`; "+
		"the two that ratios are against always take part")
	flags.IntVar(&o.pool, "pool", 10*runtime.GOMAXPROCS(0), "connections of each contender's client")
	flags.BoolVar(&o.quick, "quick", false, fmt.Sprintf("be done in under 40 seconds: -rounds %d -slice %s", quickRounds, quickSlice))
	flags.BoolVar(&o.json, "json", false, "print JSON instead of tables")
	flags.StringVar(&o.cpuProfile, "cpuprofile", "", "write a pprof CPU profile of this process to this `file`")
}

func check(o *options, given map[string]bool) error {
	if o.quick && !given["rounds"] {
		o.rounds = quickRounds
	}
	if o.quick && !given["slice"] {
		o.slice = quickSlice
	}
	if o.slice < time.Millisecond {
		return fmt.Errorf("-slice is %s, but must be at least 1ms", o.slice)
	}
	return cmp.Or(harness.Within("rounds", o.rounds, 1, 0), harness.Within("pool", o.pool, 1, 0))
}

// contenders are those that were asked for, and the references.
func (o *options) contenders() []contender {
	return slices.DeleteFunc(allContenders(), func(c contender) bool {
		return !slices.Contains(references, c.name) && !o.only.MatchString(c.name)
	})
}

// numbers is a flag's list of whole numbers above zero, as in 1,10,100.
type numbers []int

func (n *numbers) String() string {
	words := make([]string, len(*n))
	for i, number := range *n {
		words[i] = strconv.Itoa(number)
	}
	return strings.Join(words, ",")
}

// Set reads the list, and changes nothing when it can not.
func (n *numbers) Set(text string) error {
	var list numbers
	for word := range strings.SplitSeq(text, ",") {
		number, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || number < 1 || number > 1_000_000 {
			return fmt.Errorf("%q is not a whole number from 1 to 1000000", word)
		}
		list = append(list, number)
	}
	*n = list
	return nil
}
