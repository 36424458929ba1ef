package throttle

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
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

// item is a value of the file: where it is, and the YAML it is made of.
type item struct {
	path, key string
	line      int
	node      *yaml.Node
}

func (f *configFile) problem(it item, format string, args ...any) {
	f.problems = append(f.problems, Problem{Line: it.line, Path: it.path, Message: fmt.Sprintf(format, args...)})
}

// unreadable reports a problem that leaves nothing of the item to be judged.
func (f *configFile) unreadable(it item, format string, args ...any) {
	f.unread[it.path] = true
	f.problem(it, format, args...)
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
	"the file": {"policies", "routes"},
	"a policy": {"limits", "lane", "max_wait"},
	"a limit":  slices.Concat([]string{"name", "algorithm"}, algorithmKeys(true), []string{"per", "cost"}),
	"a route":  {"task", "policy"},
}

// algorithmKeys are those of any algorithm: of the known ones what this version
// reads, or else all that it does not.
func algorithmKeys(read bool) []string {
	var all []string
	for _, row := range algorithms {
		own := row.later
		if read {
			own = row.keys
		}
		for _, key := range own {
			if (row.known || !read) && !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
	}
	return all
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
		case "max_wait":
			policy.MaxWait = f.maxWait(it)
		}
	}
	return policy
}

func (f *configFile) limit(it item) Limit {
	items := f.mapping(it, "a limit", algorithmKeys(false)...)
	var limit Limit
	for _, it := range items {
		if it.key == "algorithm" {
			limit.Algorithm = Algorithm(f.text(it))
		}
	}
	for _, it := range items {
		if message := misplaced(limit.Algorithm, it.key); message != "" {
			f.unreadable(it, "%s", message)
			continue
		}
		switch it.key {
		case "name":
			limit.Name = f.text(it)
		case "rate":
			limit.Rate = f.rate(it)
		case "burst":
			limit.Burst = f.burst(it)
		case "anchor":
			limit.Anchor = Anchor(f.option(it))
		case "per":
			limit.Per = f.option(it)
		case "cost":
			limit.Cost = f.option(it)
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

// burst reads the key; unlike in a Config, a zero that somebody wrote is wrong.
func (f *configFile) burst(it item) int64 {
	text := f.option(it)
	if text == "" {
		return 0
	}
	burst, err := parseWhole(text)
	if err == nil && burst == 0 {
		err = checkBurst(burst, Rate{})
	}
	if err != nil {
		f.unreadable(it, "%v", err)
	}
	return burst
}

// maxWait reads the key; zero means never, for which a Config has a negative.
func (f *configFile) maxWait(it item) time.Duration {
	text := f.option(it)
	if text == "" {
		return 0
	}
	wait, err := parseDuration(text)
	switch {
	case err != nil:
		f.unreadable(it, "%s: %v", quote(text), err)
	case wait < 0:
		f.unreadable(it, "%s is negative; write 0s to let no worker hold a task", quote(text))
	case wait == 0:
		return -1
	}
	return wait
}

// mapping reads the keys of one kind of mapping. Keys that it does not have are
// problems, except for those tolerated; one that is nearly a key still missing
// is read as that, so that its value is checked as well.
func (f *configFile) mapping(it item, kind string, tolerated ...string) []item {
	known := keys[kind]
	for _, key := range known {
		f.lines[join(it.path, key)] = it.line
	}
	items := f.entries(it, "a mapping with the keys "+strings.Join(known, ", "))
	missing := slices.DeleteFunc(slices.Clone(known), func(key string) bool {
		return slices.ContainsFunc(items, func(it item) bool { return it.key == key })
	})
	for i, entry := range items {
		if slices.Contains(known, entry.key) || slices.Contains(tolerated, entry.key) {
			continue
		}
		meant := nearest(entry.key, missing)
		switch home := homeOf(entry.key); {
		case home != "":
			f.problem(entry, "%s is a key of %s, but %s has only %s", entry.key, home, kind, strings.Join(known, ", "))
		case meant == "":
			f.problem(entry, "unknown key %s; %s has only %s", quote(entry.key), kind, strings.Join(known, ", "))
		default:
			f.problem(entry, "unknown key %s; did you mean %s?", quote(entry.key), quote(meant))
			missing = slices.DeleteFunc(missing, func(key string) bool { return key == meant })
			items[i].key, items[i].path = meant, join(it.path, meant)
			f.lines[items[i].path] = entry.line
		}
	}
	return items
}

// homeOf returns the kind of mapping that has the key, or "".
func homeOf(key string) string {
	for _, kind := range slices.Sorted(maps.Keys(keys)) {
		if slices.Contains(keys[kind], key) {
			return kind
		}
	}
	return ""
}

// entries reads a mapping with any keys. Keys merged in with << come after its
// own, and do not replace them.
func (f *configFile) entries(it item, shape string) []item {
	node := resolve(it.node)
	if node.Kind != yaml.MappingNode {
		f.unreadable(it, "must be %s, but it is %s", shape, describe(node))
		return nil
	}
	items, merges := f.ownEntries(it, node)
	taken := map[string]bool{}
	for _, entry := range items {
		taken[entry.key] = true
	}
	merged := map[*yaml.Node]bool{node: true} // a mapping may merge itself
	for len(merges) > 0 {
		node, merges = merges[0], merges[1:]
		if merged[node] {
			continue
		}
		merged[node] = true
		more, inner := f.ownEntries(it, node)
		for _, entry := range more {
			if !taken[entry.key] {
				taken[entry.key] = true
				items = append(items, entry)
			}
		}
		merges = append(inner, merges...)
	}
	for _, entry := range items {
		f.lines[entry.path] = entry.line
	}
	return items
}

// ownEntries splits a mapping into its own keys and the mappings it merges.
func (f *configFile) ownEntries(it item, mapping *yaml.Node) (items []item, merges []*yaml.Node) {
	first := map[string]int{}
	for pair := range slices.Chunk(mapping.Content, 2) {
		key, value := resolve(pair[0]), resolve(pair[1])
		entry := item{path: join(it.path, key.Value), key: key.Value, line: pair[0].Line, node: value}
		switch line, double := first[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			entry.path = it.path
			f.problem(entry, "a key must be a plain word, but here it is %s", describe(key))
		case key.ShortTag() == "!!merge":
			sources := []*yaml.Node{value}
			if value.Kind == yaml.SequenceNode {
				sources = value.Content
			}
			for _, source := range sources {
				if source = resolve(source); source.Kind == yaml.MappingNode {
					merges = append(merges, source)
				} else {
					f.problem(entry, "<< merges mappings, such as *defaults, but here is %s", describe(source))
				}
			}
		case double:
			f.problem(entry, "the key is in line %d already; remove one of the two", line)
		default:
			first[key.Value] = entry.line
			items = append(items, entry)
		}
	}
	return items, merges
}

// list reads the items of a list.
func (f *configFile) list(it item, shape string) []item {
	node := resolve(it.node)
	if node.Kind != yaml.SequenceNode {
		f.unreadable(it, "must be %s, but it is %s", shape, describe(node))
		return nil
	}
	var items []item
	for i, content := range node.Content {
		entry := item{path: index(it.path, i), line: content.Line, node: content}
		f.lines[entry.path] = entry.line
		items = append(items, entry)
	}
	return items
}

// text reads a single value as it is written; a number is a text as well. What
// is empty is left to be found missing.
func (f *configFile) text(it item) string {
	node := resolve(it.node)
	switch {
	case node.Kind != yaml.ScalarNode:
		f.unreadable(it, "must be a single value, but it is %s", describe(node))
		return ""
	case node.ShortTag() == "!!null":
		return ""
	}
	return node.Value
}

// option is text for a key that may be left out, but not left empty.
func (f *configFile) option(it item) string {
	text := f.text(it)
	if text == "" && !f.unread[it.path] {
		f.unreadable(it, "the value is empty; write one, or remove the key for its default")
	}
	return text
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// describe says what a value is, to somebody who wrote something else.
func describe(node *yaml.Node) string {
	switch {
	case node.Kind == yaml.MappingNode:
		return "a mapping"
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.ShortTag() == "!!null":
		return "empty"
	}
	return "the text " + quote(node.Value)
}

// document returns the file's one YAML document, or nil when it has none that
// can be read.
func (f *configFile) document(data []byte) *yaml.Node {
	if len(data) > maxFileSize {
		f.problem(item{}, "the file is larger than %d bytes; is it a policies file?", maxFileSize)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	err := decoder.Decode(&first)
	switch {
	case errors.Is(err, io.EOF), err == nil && first.Content[0].ShortTag() == "!!null":
		f.problem(item{line: 1}, `the file is empty; begin with "policies:" and at least one policy`)
		return nil
	case err != nil:
		f.syntax(data, err)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		f.problem(item{line: second.Line}, "a second YAML document begins here; write everything into the first, and remove the ---")
	case !errors.Is(err, io.EOF):
		f.syntax(data, err)
		return nil
	}
	return first.Content[0]
}

// hints explain the parser's terse complaints, by the words they contain.
var hints = []struct{ words, hint string }{
	{"alphabetic or numeric", `put a value that begins with * or & in quotes, as in "*"`},
	{"unknown anchor", `put a value that begins with * in quotes, or define the anchor with & above`},
	{"cannot start any token", "indent with spaces, not tabs, and put a value with special characters in quotes"},
	{"mapping values", `check the indentation, and put a value that contains ": " in quotes`},
	{"expected key", "check this line's indentation: it fits no line above"},
	{"'-' indicator", "check this line's indentation: the list above has not ended"},
	{"expected ':'", `a key needs a colon and a space after it, as in "rate: 10/s"`},
	{"unexpected end of stream", "a quoted value does not end; close the quotes"},
	{"expected ','", "a bracket is not closed, or a comma is missing"},
}

var parserError = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?((?s:.*))$`)

// syntax reports that the file is no YAML. The parser's own line is a line or
// more too early, often that of the enclosing block. The line to look at is the
// last of the shortest beginning of the file that fails in the same way.
func (f *configFile) syntax(data []byte, err error) {
	found := parserError.FindStringSubmatch(err.Error())
	early, _ := strconv.Atoi(found[1])
	complaint := found[2]
	lines := bytes.SplitAfter(data, []byte("\n"))
	early = min(max(early, 1), len(lines))
	line := early + sort.Search(len(lines)-early, func(more int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(bytes.Join(lines[:early+more], nil)))
		for {
			if err := decoder.Decode(new(yaml.Node)); err != nil {
				return strings.HasSuffix(err.Error(), complaint)
			}
		}
	})
	for _, h := range hints {
		if strings.Contains(complaint, h.words) {
			complaint += "; " + h.hint
			break
		}
	}
	f.problem(item{line: line}, "this is not valid YAML: %s", complaint)
}

// nearest returns the candidate that word is probably a slip of, or "".
func nearest(word string, candidates []string) string {
	plain := func(s string) string {
		return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
	}
	best, least := "", 3 // two slips are near, three make another word
	for _, candidate := range candidates {
		d := distance(plain(word), plain(candidate))
		if d < least && 2*d <= len(candidate) {
			best, least = candidate, d
		}
	}
	return best
}

// distance counts the letters to add, drop or change to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
