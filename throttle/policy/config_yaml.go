package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

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

// mapping reads the keys of one kind of mapping. Keys that it does not have are
// problems; one that is nearly a key still missing is read as that, so that its
// value is checked as well.
func (f *configFile) mapping(it item, kind string) []item {
	known := keys[kind]
	for _, key := range known {
		f.lines[join(it.path, key)] = it.line
	}
	items := f.entries(it, "a mapping with the keys "+strings.Join(known, ", "))
	missing := slices.DeleteFunc(slices.Clone(known), func(key string) bool {
		return slices.ContainsFunc(items, func(it item) bool { return it.key == key })
	})
	for i, entry := range items {
		if slices.Contains(known, entry.key) {
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
	var items []item
	taken, read := map[string]bool{}, map[*yaml.Node]bool{} // a mapping may merge itself
	for sources := []*yaml.Node{node}; len(sources) > 0; {
		node, sources = sources[0], sources[1:]
		if read[node] {
			continue
		}
		read[node] = true
		own, merges := f.ownEntries(it, node)
		for _, entry := range own {
			if !taken[entry.key] {
				taken[entry.key] = true
				f.lines[entry.path] = entry.line
				items = append(items, entry)
			}
		}
		sources = append(merges, sources...)
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

// needed are the keys without a default. What is empty there is found missing later.
var needed = []string{"name", "algorithm", "rate", "slots", "task", "policy"}

// text reads a single value as it is written; a number is a text as well. A key that has
// a default may be left out, but not left empty.
func (f *configFile) text(it item) string {
	switch node := resolve(it.node); {
	case node.Kind != yaml.ScalarNode:
		f.unreadable(it, "must be a single value, but it is %s", describe(node))
	case node.ShortTag() != "!!null" && node.Value != "":
		return node.Value
	case !slices.Contains(needed, it.key):
		f.unreadable(it, "the value is empty; write one, or remove the key for its default")
	}
	return ""
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
