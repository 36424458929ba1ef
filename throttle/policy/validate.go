package policy

import (
	"fmt"
	"regexp"
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
