package policy

import "strings"

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
