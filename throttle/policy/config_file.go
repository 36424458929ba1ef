package policy

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxFileSize keeps a path that is no policies file, such as a log or a device,
// from being read whole.
const maxFileSize = 1 << 20

// ReadFile reads and checks a policies file. An error is a *ConfigError when the
// file's content is at fault, with every problem and its line; otherwise it wraps
// the reason why the file could not be read.
func ReadFile(path string) (*Config, error) {
	data, err := Content(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Content returns what is in a policies file, for Parse: no more than it takes to find
// it too long.
func Content(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("policies file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("policies file: %w", err)
	}
	return data, nil
}

// Parse reads and checks the content of a policies file. The name is what
// messages call the file. An error is always a *ConfigError.
func Parse(name string, data []byte) (*Config, error) {
	f := &configFile{lines: map[string]int{}, unread: map[string]bool{}, zeros: map[string]bool{}}
	var config *Config
	if root := f.document(data); root != nil {
		config = &Config{}
		f.fields(item{line: 1, node: root}, "the file", config)
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
	unread map[string]bool
	// zeros are the paths where a zero is written, which in a Config stands for a default.
	zeros    map[string]bool
	problems []Problem
}

// judge adds the problems of the values that could be read, with their lines.
func (f *configFile) judge(config *Config) {
	for _, p := range config.problems(f.zeros) {
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

// fields reads a mapping into the fields of the struct that into points to.
func (f *configFile) fields(it item, kind string, into any) {
	for _, it := range f.mapping(it, kind) {
		f.field(it, fieldFor(into, it.key))
	}
}

// field reads a value by the type of the field that it is for.
func (f *configFile) field(it item, into any) {
	switch into := into.(type) {
	case nil: // an unknown key, which is told of already
	case *[]Policy:
		for _, it := range f.entries(it, "a mapping from policy names to policies") {
			*into = append(*into, f.policy(it))
		}
	case *[]Limit:
		for _, it := range f.list(it, `a list of limits, each starting with "- name:"`) {
			*into = append(*into, f.limit(it))
		}
	case *[]Route:
		for _, it := range f.list(it, `a list of routes, each starting with "- task:"`) {
			var route Route
			f.fields(it, "a route", &route)
			*into = append(*into, route)
		}
	case **Upstream:
		*into = f.upstream(it)
	case *Headroom:
		*into = f.headroom(it)
	case *Rate:
		*into = f.rate(it)
	case *int64:
		*into = f.number(it, f.text(it))
	case *time.Duration:
		*into = f.duration(it)
	case *map[string]int64:
		*into = map[string]int64{}
		for _, it := range f.entries(it, "a mapping from lanes to their weights") {
			(*into)[it.key] = f.number(it, f.text(it))
		}
	case *map[string]string:
		*into = map[string]string{}
		for _, it := range f.entries(it, "a mapping from the upstream's names of quotas to limits") {
			(*into)[it.key] = f.text(it)
		}
	default: // one of the kinds of strings
		reflect.ValueOf(into).Elem().SetString(f.text(it))
	}
}

func (f *configFile) policy(it item) Policy {
	policy := Policy{Name: it.key}
	f.fields(it, "a policy", &policy)
	wait := join(it.path, "max_wait")
	switch {
	case policy.MaxWait < 0:
		f.unreadable(item{path: wait, line: f.lines[wait]}, "%q is negative; write 0s to let no worker hold a task", policy.MaxWait)
	case f.zeros[wait]:
		policy.MaxWait = -1 // for which a Config has a negative
	}
	return policy
}

func (f *configFile) limit(it item) (limit Limit) {
	items := f.mapping(it, "a limit")
	// The algorithm comes first, because it says which keys are in their place.
	if i := slices.IndexFunc(items, func(it item) bool { return it.key == "algorithm" }); i > 0 {
		items[0], items[i] = items[i], items[0]
	}
	for _, it := range items {
		if err := checkPlace(limit.Algorithm, it.key); err != nil {
			f.unreadable(it, "%v", err)
			continue
		}
		f.field(it, fieldFor(&limit, it.key))
	}
	return limit
}

// upstream reads the key: the name of an API, or a mapping.
func (f *configFile) upstream(it item) *Upstream {
	u := &Upstream{}
	if resolve(it.node).Kind == yaml.ScalarNode {
		u.API = API(f.text(it))
		f.lines[join(it.path, "api")] = it.line
	} else {
		f.fields(it, "an upstream", u)
	}
	return u
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

// number reads a whole number of an item from its text.
func (f *configFile) number(it item, text string) int64 {
	if text == "" {
		return 0
	}
	number, err := parseWhole(text)
	if err != nil {
		f.unreadable(it, "%v", err)
	}
	f.zeros[it.path] = number == 0
	return number
}

func (f *configFile) duration(it item) time.Duration {
	text := f.text(it)
	if text == "" {
		return 0
	}
	length, err := parseDuration(text)
	if err != nil {
		f.unreadable(it, "%s: %v", quote(text), err)
	}
	f.zeros[it.path] = length == 0
	return length
}
