package policy

import (
	"fmt"
	"regexp"
	"strings"
)

// Validate checks all that ReadFile and Parse check, for a Config built in Go.
// It returns nil or a *ConfigError with every problem, and changes nothing.
func (c *Config) Validate() error {
	if problems := c.problems(nil); len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return nil
}

// findings collects problems that have no lines yet.
type findings struct {
	problems []Problem
	// zeros are the paths where somebody has written a zero, which in a Config stands for
	// a default.
	zeros map[string]bool
}

func (f *findings) add(path, format string, args ...any) {
	f.problems = append(f.problems, Problem{Path: path, Message: fmt.Sprintf(format, args...)})
}

// check adds an error, unless it is nil.
func (f *findings) check(path string, err error) {
	if err != nil {
		f.add(path, "%v", err)
	}
}

// problems applies every rule that can be told from the values alone, and from zeros.
func (c *Config) problems(zeros map[string]bool) []Problem {
	if c == nil {
		c = &Config{}
	}
	found := findings{zeros: zeros}
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
	return found.problems
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
	if len(p.Limits) > MaxLimits {
		f.add(join(path, "limits"), "there are %d limits, but a policy has at most %d, because every call decides them all; "+
			"remove some, or give those of another upstream a policy of their own", len(p.Limits), MaxLimits)
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
	f.upstream(join(path, "upstream"), p)
	f.overload(path, p)
	f.weights(path, p)
	if p.MaxWait > MaxMaxWait {
		f.add(join(path, "max_wait"), "%s is too long for a worker to hold a task; write at most 1h: "+
			"a task whose slot is further off is deferred, at no cost", p.MaxWait)
	}
}

// ReservedName is the name that no limit can have: where the name of a limit tells what
// held a task back, it stands for a policy that is frozen.
const ReservedName = "freeze"

func (f *findings) limit(path string, l *Limit) {
	switch l.Name {
	case "":
		f.add(join(path, "name"), "the limit has no name; add one that is unique in the policy, such as hourly")
	case ReservedName:
		f.add(join(path, "name"), "%q is reserved: it stands for a policy that its upstream has closed; choose another name", ReservedName)
	default:
		f.name(join(path, "name"), l.Name)
	}

	f.check(join(path, "algorithm"), checkAlgorithm(l.Algorithm))
	for _, key := range algorithmKeys {
		at := join(path, key.name)
		f.check(at, key.judge(l, f.zeros[at]))
	}
	f.check(join(path, "headroom"), l.checkHeadroom())
}

var simpleName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// name checks the name of a policy or a limit.
func (f *findings) name(path, name string) {
	if !simpleName.MatchString(name) {
		f.add(path, "%s can not be a name, because names become part of Redis keys; use only letters, digits, _, . and -", quote(name))
	}
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
		case len(names) > 0: // with no policy at all, one message about that is enough
			f.check(join(path, "policy"), checkWord("policy", r.Policy, names...))
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

// ValidateUpdate checks that the limits of next can read what those of the same name have
// counted so far under c. It returns nil or a *ConfigError; next must be valid.
func (c *Config) ValidateUpdate(next *Config) error {
	var problems []Problem
	for i := range next.Policies {
		policy := &next.Policies[i]
		before := c.Policy(policy.Name)
		if before == nil {
			continue
		}
		for n := range policy.Limits {
			limit := &policy.Limits[n]
			was := before.Limit(limit.Name)
			if was == nil || was.Kind() == limit.Kind() {
				continue
			}
			problems = append(problems, Problem{
				Path: join(index(join(join("policies", policy.Name), "limits"), n), "algorithm"),
				Message: fmt.Sprintf("what %s has counted as a %s can not be read as a %s; give the limit another name, under which it begins anew",
					quote(limit.Name), was.Kind(), limit.Kind()),
			})
		}
	}
	if len(problems) > 0 {
		return &ConfigError{Problems: problems}
	}
	return nil
}
