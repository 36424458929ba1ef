package policy

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// maxFileSize keeps a path that is no policies file, such as a log or a device,
// from being read whole.
const maxFileSize = 1 << 20

// ReadFile reads and checks a policies file. An error is a *ConfigError when the
// file's content is at fault, with every problem and its line; otherwise it wraps
// the reason why the file could not be read.
func ReadFile(path string) (*Config, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("policies file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("policies file: %w", err)
	}
	return Parse(path, data)
}

// Parse reads and checks the content of a policies file. The name is what
// messages call the file. An error is always a *ConfigError.
func Parse(name string, data []byte) (*Config, error) {
	f := &configFile{lines: map[string]int{}, unread: map[string]bool{}}
	var config *Config
	if root := f.document(data); root != nil {
		config = f.config(item{line: 1, node: root})
		f.judge(config)
	}
	if len(f.problems) == 0 {
		return config, nil
	}
	slices.SortStableFunc(f.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return nil, &ConfigError{File: name, Problems: f.problems}
}

// configFile is a policies file while it is read. Reading goes on after a
// problem, so that all are found at once. It reports only what is lost in a
// Config, such as keys and kinds; the values are judged by Config.problems.
type configFile struct {
	// lines has the line of every path, and for a key that was left out the
	// line of the mapping that lacks it.
	lines map[string]int
	// unread are the paths whose value could not be read: what the Config has
	// there was not written by anybody.
	unread   map[string]bool
	problems []Problem
}

// judge adds the problems of the values that could be read, with their lines.
func (f *configFile) judge(config *Config) {
	for _, p := range config.problems() {
		if !f.lost(p.Path) {
			p.Line = f.lines[p.Path]
			f.problems = append(f.problems, p)
		}
	}
}

// lost reports whether a path is, or lies within, one that could not be read.
func (f *configFile) lost(path string) bool {
	for end, char := range path {
		if (char == '.' || char == '[') && f.unread[path[:end]] {
			return true
		}
	}
	return f.unread[path] || f.unread[""]
}

// keys are the keys of each kind of mapping, in the order messages name them.
var keys = map[string][]string{
	"the file":    {"policies", "routes"},
	"a policy":    {"limits", "lane", "weights", "weight", "max_wait", "max_defer", "overload", "upstream"},
	"a limit":     slices.Concat([]string{"name", "algorithm"}, algorithmKeyNames(), []string{"per", "cost", "headroom"}),
	"a headroom":  {PriorityHigh},
	"a route":     {"task", "policy"},
	"an upstream": {"api", "headroom", "quotas", "max_freeze"},
}

func (f *configFile) config(root item) *Config {
	config := &Config{}
	for _, it := range f.mapping(root, "the file") {
		switch it.key {
		case "policies":
			for _, policy := range f.entries(it, "a mapping from policy names to policies") {
				config.Policies = append(config.Policies, f.policy(policy))
			}
		case "routes":
			for _, route := range f.list(it, `a list of routes, each starting with "- task:"`) {
				config.Routes = append(config.Routes, f.route(route))
			}
		}
	}
	return config
}

func (f *configFile) policy(it item) Policy {
	policy := Policy{Name: it.key}
	for _, it := range f.mapping(it, "a policy") {
		switch it.key {
		case "limits":
			for _, limit := range f.list(it, `a list of limits, each starting with "- name:"`) {
				policy.Limits = append(policy.Limits, f.limit(limit))
			}
		case "lane":
			policy.Lane = f.option(it)
		case "weights":
			policy.Weights = map[string]int64{}
			for _, weight := range f.entries(it, "a mapping from lanes to their weights") {
				policy.Weights[weight.key] = f.whole(weight, f.option(weight), checkWeight)
			}
		case "weight":
			policy.Weight = f.option(it)
		case "max_wait":
			policy.MaxWait = f.maxWait(it)
		case "max_defer":
			policy.MaxDefer = f.duration(it, f.option(it), checkMaxDefer)
		case "overload":
			policy.Overload = Overload(f.option(it))
		case "upstream":
			policy.Upstream = f.upstream(it)
		}
	}
	return policy
}

func (f *configFile) limit(it item) Limit {
	items := f.mapping(it, "a limit")
	var limit Limit
	for _, it := range items {
		if it.key == "algorithm" {
			limit.Algorithm = Algorithm(f.text(it))
		}
	}
	for _, it := range items {
		if err := checkPlace(limit.Algorithm, it.key); err != nil {
			f.unreadable(it, "%v", err)
			continue
		}
		switch it.key {
		case "name":
			limit.Name = f.text(it)
		case "rate":
			limit.Rate = f.rate(it)
		case "anchor":
			limit.Anchor = Anchor(f.option(it))
		case "precision":
			limit.Precision = f.duration(it, f.option(it), checkPrecision)
		case "burst":
			limit.Burst = f.whole(it, f.option(it), checkBurst)
		case "refill":
			limit.Refill = Refill(f.option(it))
		case "slots":
			limit.Slots = f.whole(it, f.text(it), checkSlots)
		case "lease":
			limit.Lease = f.duration(it, f.option(it), checkLease)
		case "per":
			limit.Per = f.option(it)
		case "cost":
			limit.Cost = f.option(it)
		case "headroom":
			limit.Headroom = f.headroom(it)
		}
	}
	return limit
}

func (f *configFile) route(it item) Route {
	var route Route
	for _, it := range f.mapping(it, "a route") {
		switch it.key {
		case "task":
			route.Task = f.text(it)
		case "policy":
			route.Policy = f.text(it)
		}
	}
	return route
}

func (f *configFile) rate(it item) Rate {
	text := f.text(it)
	if text == "" {
		return Rate{}
	}
	rate, err := parseRate(text)
	if err != nil {
		f.unreadable(it, "%s: %v", quote(text), err)
	}
	return rate
}

// whole reads a number that is judged at once: a Config takes a zero for one that
// nobody wrote.
func (f *configFile) whole(it item, text string, check func(int64) error) int64 {
	if text == "" {
		return 0
	}
	number, err := parseWhole(text)
	if err == nil {
		err = check(number)
	}
	if err != nil {
		f.unreadable(it, "%v", err)
	}
	return number
}

// duration reads a time that is judged at once, like a whole number.
func (f *configFile) duration(it item, text string, check func(time.Duration) error) time.Duration {
	if text == "" {
		return 0
	}
	length, err := parseDuration(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", quote(text), err)
	} else {
		err = check(length)
	}
	if err != nil {
		f.unreadable(it, "%v", err)
	}
	return length
}

// maxWait reads the key; zero means never, for which a Config has a negative.
func (f *configFile) maxWait(it item) time.Duration {
	wait := f.duration(it, f.option(it), func(wait time.Duration) error {
		if wait < 0 {
			return fmt.Errorf("%s is negative; write 0s to let no worker hold a task", quote(wait.String()))
		}
		return nil
	})
	if wait == 0 && !f.unread[it.path] {
		return -1
	}
	return wait
}
