package throttle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// MaxMaxWait is the longest a policy may let a worker hold a task. A task that
// is further from its slot than this belongs in the waiting line: held, it
// would take up a worker and run into asynq's own timeout.
const MaxMaxWait = time.Hour

// ConfigError lists everything that is wrong with a policies file, or with a
// Config built in Go, so that one look is enough to put it right.
type ConfigError struct {
	// File is the name of the policies file; empty for a Config built in Go.
	File string
	// Problems is never empty, and in the order of the file's lines.
	Problems []Problem
}

// Error gives each problem a line of its own, beginning with file and line.
func (e *ConfigError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
		switch {
		case e.File != "" && p.Line > 0:
			lines[i] = fmt.Sprintf("%s:%d: %s", e.File, p.Line, p)
		case e.File != "":
			lines[i] = fmt.Sprintf("%s: %s", e.File, p)
		case p.Line > 0:
			lines[i] = fmt.Sprintf("line %d: %s", p.Line, p)
		}
	}
	return strings.Join(lines, "\n")
}

// Problem is one mistake in a configuration.
type Problem struct {
	// Line is where it is in the file, from 1; zero when there is no line.
	Line int
	// Path is where it is in the configuration, as in
	// policies.github.limits[0].rate; empty for the whole of it.
	Path string
	// Message says what is wrong and what would be right.
	Message string
}

// String is the path and the message, without the line.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// Validate checks all that ReadFile and Parse check, for a Config built in Go.
// It returns nil or a *ConfigError with every problem, and changes nothing.
func (c *Config) Validate() error {
	if problems := c.problems(); len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return nil
}

// algorithmRow says what may be written about one algorithm.
type algorithmRow struct {
	name Algorithm
	// known is false for an algorithm that only a later version has.
	known bool
	// keys are its own, besides those that every limit has.
	keys []string
	// later are further keys of its own that only a later version reads.
	later []string
}

// algorithms is the one place that says which algorithm takes which keys. A new
// algorithm is a row here; a key that no algorithm had before is read in
// config_file.go and checked below as well.
var algorithms = []algorithmRow{
	{name: FixedWindow, known: true, keys: []string{"rate", "anchor"}},
	{name: TokenBucket, known: true, keys: []string{"rate", "burst"}, later: []string{"refill"}},
	{name: "sliding_log", keys: []string{"rate"}},
	{name: "sliding_window", keys: []string{"rate"}, later: []string{"precision"}},
	{name: "concurrency", later: []string{"slots", "lease"}},
}

// knownAlgorithms lists the algorithms of this version.
func knownAlgorithms() []string {
	var names []string
	for _, row := range algorithms {
		if row.known {
			names = append(names, string(row.name))
		}
	}
	return names
}

// rowOf returns the row of an algorithm, and false for one unheard of.
func rowOf(a Algorithm) (algorithmRow, bool) {
	for _, row := range algorithms {
		if row.name == a {
			return row, true
		}
	}
	return algorithmRow{}, false
}

// misplaced says why a limit with this algorithm can not have a key that belongs
// to some algorithm, or returns "". With an algorithm that is itself a problem
// no key is: which keys are right depends on how that is solved.
func misplaced(a Algorithm, key string) string {
	own, _ := rowOf(a)
	if !own.known || slices.Contains(own.keys, key) {
		return ""
	}
	known := strings.Join(knownAlgorithms(), " and ")
	for _, row := range algorithms {
		switch {
		case row.known && slices.Contains(row.keys, key):
			return fmt.Sprintf("%s is a key of %s, but this limit is a %s; remove it or change the algorithm", key, row.name, a)
		case slices.Contains(row.later, key):
			return fmt.Sprintf("%s is a key of %s that this version does not have; it knows %s; remove the key", key, row.name, known)
		}
	}
	return ""
}

// findings collects problems that have no lines yet.
type findings []Problem

func (f *findings) add(path, format string, args ...any) {
	*f = append(*f, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// problems applies every rule that can be told from the values alone.
func (c *Config) problems() []Problem {
	if c == nil {
		c = &Config{}
	}
	var found findings
	if len(c.Policies) == 0 {
		found.add("policies", "there is no policy; define at least one, with its limits")
	}
	seen := map[string]bool{}
	for i := range c.Policies {
		p := &c.Policies[i]
		path := join("policies", p.Name)
		if seen[p.Name] {
			found.add(path, "two policies have this name; rename one")
		}
		seen[p.Name] = true
		found.policy(path, p)
	}
	found.routes(c)
	return found
}

func (f *findings) policy(path string, p *Policy) {
	if p.Name == "" {
		f.add(path, "a policy needs a name, such as that of its upstream")
	} else {
		f.name(path, p.Name)
	}
	if len(p.Limits) == 0 {
		f.add(join(path, "limits"), "a policy needs at least one limit; add one with name, algorithm and rate")
	}
	owner := map[string]int{}
	for i := range p.Limits {
		limit := &p.Limits[i]
		at := index(join(path, "limits"), i)
		if first, taken := owner[limit.Name]; taken && limit.Name != "" {
			f.add(join(at, "name"), "%s is the name of limits[%d] already; rename one", quote(limit.Name), first)
		} else {
			owner[limit.Name] = i
		}
		f.limit(at, limit)
	}
	if p.MaxWait > MaxMaxWait {
		f.add(join(path, "max_wait"), "%s is too long for a worker to hold a task; write at most 1h: "+
			"a task whose slot is further off is deferred, at no cost", p.MaxWait)
	}
}

func (f *findings) limit(path string, l *Limit) {
	switch l.Name {
	case "":
		f.add(join(path, "name"), "the limit has no name; add one that is unique in the policy, such as hourly")
	case HeldByFreeze:
		f.add(join(path, "name"), "%q is reserved: it stands for a policy that its upstream has closed; choose another name", HeldByFreeze)
	default:
		f.name(join(path, "name"), l.Name)
	}

	f.algorithm(path, l)
	if l.Rate != (Rate{}) {
		if err := l.Rate.check(); err != nil {
			f.add(join(path, "rate"), "%s: %v", l.Rate, err)
		}
	}
	if l.Burst != 0 && misplaced(l.Algorithm, "burst") == "" {
		if err := checkBurst(l.Burst, l.Rate); err != nil {
			f.add(join(path, "burst"), "%v", err)
		}
	}
	anchors := []Anchor{"", AnchorClock, AnchorFirst}
	if !slices.Contains(anchors, l.Anchor) && misplaced(l.Algorithm, "anchor") == "" {
		f.add(join(path, "anchor"), "unknown anchor %s; use %s or %s", quote(string(l.Anchor)), AnchorClock, AnchorFirst)
	}
}

// algorithm checks that there is one and that the limit has its keys and no
// others. Of an algorithm that is missing or misspelt it expects a rate.
func (f *findings) algorithm(path string, l *Limit) {
	row, heard := rowOf(l.Algorithm)
	choice := strings.Join(knownAlgorithms(), ", ")
	at := join(path, "algorithm")
	switch {
	case l.Algorithm == "":
		f.add(at, "the algorithm is missing; use one of %s", choice)
	case !heard:
		f.add(at, "unknown algorithm %s; use one of %s", quote(string(l.Algorithm)), choice)
	case !row.known:
		f.add(at, "this version does not know %s yet; use one of %s", l.Algorithm, choice)
	}
	if l.Rate == (Rate{}) && (!heard || slices.Contains(row.keys, "rate")) {
		f.add(join(path, "rate"), "the rate is missing; write tokens per period, as in 5000/1h")
	}
	set := map[string]bool{"rate": l.Rate != Rate{}, "burst": l.Burst != 0, "anchor": l.Anchor != ""}
	for _, key := range []string{"rate", "burst", "anchor"} {
		if message := misplaced(l.Algorithm, key); set[key] && message != "" {
			f.add(join(path, key), "%s", message)
		}
	}
}

// checkBurst tells what is wrong with a burst at a rate, or returns nil.
func checkBurst(burst int64, rate Rate) error {
	switch {
	case burst < 1:
		return fmt.Errorf("the burst is %d, but must be at least 1; leave it out for the rate's count", burst)
	case burst > MaxBurst:
		return fmt.Errorf("the burst is %d, but must be at most %d", burst, MaxBurst)
	case rate.check() == nil && burst > rate.mostRefilled():
		return fmt.Errorf("a bucket of %d needs more than 30 years to fill up at %s; write at most %d, or a faster rate",
			burst, rate, rate.mostRefilled())
	}
	return nil
}

func (f *findings) routes(c *Config) {
	var names []string
	for _, p := range c.Policies {
		names = append(names, p.Name)
	}
	for i, r := range c.Routes {
		path := index("routes", i)
		f.task(join(path, "task"), c.Routes[:i], r)
		switch {
		case r.Policy == "":
			f.add(join(path, "policy"), "the policy is missing; name the one these tasks must pass")
		case len(names) == 0 || slices.Contains(names, r.Policy):
			// With no policy at all, one message about that is enough.
		case nearest(r.Policy, names) != "":
			f.add(join(path, "policy"), "unknown policy %s; did you mean %s?", quote(r.Policy), quote(nearest(r.Policy, names)))
		default:
			f.add(join(path, "policy"), "unknown policy %s; use one of %s", quote(r.Policy), strings.Join(names, ", "))
		}
	}
}

// task checks a route's pattern, and that no earlier route takes all its tasks.
func (f *findings) task(path string, earlier []Route, r Route) {
	if r.Task == "" {
		f.add(path, "the task is missing; write a task type, or a prefix ending in *")
		return
	}
	prefix, _ := strings.CutSuffix(r.Task, "*")
	if strings.Contains(prefix, "*") {
		f.add(path, "%s has a * before its end; only a last * stands for any rest", quote(r.Task))
		return
	}
	for i, other := range earlier {
		start, takesAll := strings.CutSuffix(other.Task, "*")
		switch {
		case other.Task == r.Task:
			f.add(path, "%s is the task of routes[%d] already; remove one of the two", quote(r.Task), i)
			return
		case takesAll && strings.HasPrefix(prefix, start):
			f.add(path, "no task gets to %s, because routes[%d] takes all of %s first; move this route before that one, or remove it",
				quote(r.Task), i, quote(other.Task))
			return
		}
	}
}

var simpleName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// name checks the name of a policy or a limit.
func (f *findings) name(path, name string) {
	if !simpleName.MatchString(name) {
		f.add(path, "%s can not be a name, because names become part of Redis keys; use only letters, digits, _, . and -", quote(name))
	}
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// join makes the path of a key. A key that would make it ambiguous is quoted.
func join(path, key string) string {
	if !plainKey.MatchString(key) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// index makes the path of a list's item.
func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
