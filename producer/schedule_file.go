package producer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// maxScheduleSize keeps a path that is no schedule, such as a log or a device,
// from being read whole.
const maxScheduleSize = 1 << 20

// ReadSchedule reads and checks a schedule file:
//
//	schedule:
//	  - name: nightly-report
//	    cron: "30 3 * * *"        # minute hour day month weekday; six fields: seconds first
//	    timezone: Europe/Berlin   # optional, default UTC
//	    url: https://api.example.com/reports
//	    method: POST
//	    attributes: {installation: "42"}
//	  - name: sync
//	    cron: "*/10 * * * * *"
//	    type: crm:sync
//	    payload: {full: false}
//	    queue: low
//
// Beside name, cron and timezone an entry has the fields of a batch line, except
// id, process_at and deadline. An error is a [*policy.ConfigError] when the
// content is at fault, with every problem and its line; otherwise it wraps the
// reason why the file could not be read.
func ReadSchedule(path string) (*Schedule, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("schedule file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxScheduleSize+1))
	if err != nil {
		return nil, fmt.Errorf("schedule file: %w", err)
	}
	return ParseSchedule(path, data)
}

// ParseSchedule reads and checks the content of a schedule file. The name is what
// messages call the file. An error is always a [*policy.ConfigError].
func ParseSchedule(name string, data []byte) (*Schedule, error) {
	f := &scheduleFile{lines: map[string]int{}, unread: map[string]bool{}}
	schedule := f.read(data)
	if schedule != nil {
		for _, p := range schedule.problems() {
			if !f.unread[p.Path] {
				f.problem(f.lineOf(p.Path), p.Path, "%s", p.Message)
			}
		}
	}
	if len(f.problems) == 0 {
		return schedule, nil
	}
	slices.SortStableFunc(f.problems, func(a, b policy.Problem) int { return cmp.Compare(a.Line, b.Line) })
	return nil, &policy.ConfigError{File: name, Problems: f.problems}
}

// scheduleFile is a schedule file while it is read: reading goes on after a
// problem, so that all are found at once.
type scheduleFile struct {
	lines    map[string]int  // of every path
	unread   map[string]bool // paths with a value that could not be read
	problems []policy.Problem
}

func (f *scheduleFile) problem(line int, path, format string, args ...any) {
	f.problems = append(f.problems, policy.Problem{Line: line, Path: path, Message: fmt.Sprintf(format, args...)})
}

// lineOf is the path's line, or that of the entry that lacks it.
func (f *scheduleFile) lineOf(path string) int {
	if line, ok := f.lines[path]; ok {
		return line
	}
	entry, _, _ := strings.Cut(path, ".")
	return f.lines[entry]
}

// read returns nil when there are no entries to be judged.
func (f *scheduleFile) read(data []byte) *Schedule {
	if len(data) > maxScheduleSize {
		f.problem(0, "", "the file is longer than %d bytes, which no schedule is", maxScheduleSize)
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := dec.Decode(&document); errors.Is(err, io.EOF) {
		f.problem(1, "", "the file is empty; it needs a list of entries under schedule:")
		return nil
	} else if err != nil {
		f.syntax(err)
		return nil
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		f.problem(0, "", "the file holds more than one YAML document; keep one")
		return nil
	}
	list := f.list(document.Content[0])
	if list == nil {
		return nil
	}
	schedule := &Schedule{}
	for i, node := range list.Content {
		schedule.Entries = append(schedule.Entries, f.entry(i, resolve(node)))
	}
	return schedule
}

func (f *scheduleFile) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if _, err := fmt.Sscanf(text, "line %d:", &line); err == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	f.problem(line, "", "no YAML: %s", text)
}

// list finds the one key of the file.
func (f *scheduleFile) list(root *yaml.Node) *yaml.Node {
	if root.Kind != yaml.MappingNode {
		f.problem(root.Line, "", "expected a list of entries under schedule:")
		return nil
	}
	var list *yaml.Node
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], resolve(root.Content[i+1])
		switch {
		case key.Value != "schedule":
			f.problem(key.Line, key.Value, "unknown; the only key here is schedule")
		case list != nil:
			f.problem(key.Line, "schedule", "given twice")
		case value.Kind != yaml.SequenceNode:
			f.problem(key.Line, "schedule", "must be a list of entries, each beginning with a dash")
		default:
			list = value
			f.lines["schedule"] = key.Line
		}
	}
	if list == nil && len(f.problems) == 0 {
		f.problem(root.Line, "", "there is no schedule: in it")
	}
	return list
}

// entry reads what can be read of an entry and reports the rest.
func (f *scheduleFile) entry(index int, node *yaml.Node) ScheduleEntry {
	f.lines[fieldPath(index, "")] = node.Line
	if node.Kind != yaml.MappingNode {
		f.problem(node.Line, fieldPath(index, ""), "must be a mapping with name, cron and a task")
		for _, field := range []string{"name", "cron", "type"} {
			f.unread[fieldPath(index, field)] = true
		}
		return ScheduleEntry{}
	}
	var entry ScheduleEntry
	own := map[string]*string{"name": &entry.Name, "cron": &entry.Cron, "timezone": &entry.Timezone}
	var fields []field
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], resolve(node.Content[i+1])
		path := fieldPath(index, key.Value)
		_, twice := f.lines[path]
		f.lines[path] = key.Line
		text, isOwn := own[key.Value]
		switch {
		case isOwn && twice:
			f.problem(key.Line, path, "given twice")
		case isOwn && (value.Kind != yaml.ScalarNode || value.Tag != "!!str"):
			f.problem(key.Line, path, "must be a text; put it in quotes")
			f.unread[path] = true
		case isOwn:
			*text = value.Value
		default:
			raw, err := toJSON(value)
			if err != nil {
				f.problem(key.Line, path, "%s", err)
				f.unread[path] = true
				continue
			}
			fields = append(fields, field{key.Value, raw})
		}
	}
	f.task(index, fields, &entry)
	return entry
}

// task reads the fields that a batch line has, too.
func (f *scheduleFile) task(index int, fields []field, entry *ScheduleEntry) {
	var problems FieldErrors
	entry.Entry = readEntry(fields, scheduleFields(), &problems)
	for _, p := range problems {
		path := fieldPath(index, p.Path)
		f.problem(f.lineOf(path), path, "%s", p.Message)
		f.unread[path] = true
	}
	if len(problems) > 0 { // a short form in error leaves these open
		f.unread[fieldPath(index, "type")] = true
		f.unread[fieldPath(index, "payload")] = true
	}
}

// scheduleFields are the names of an entry's fields.
func scheduleFields() []string {
	fixed := []string{"id", "process_at", "deadline"}
	ofTask := slices.DeleteFunc(fieldNames(), func(name string) bool { return slices.Contains(fixed, name) })
	return append([]string{"name", "cron", "timezone"}, ofTask...)
}

// resolve follows an alias to what it stands for.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// toJSON writes a value as a batch line would have it.
func toJSON(node *yaml.Node) (json.RawMessage, error) {
	var value any
	if err := node.Decode(&value); err != nil {
		return nil, errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", ";"))
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return nil, errors.New("can not be written as JSON: use texts as keys and finite numbers")
	}
	return b.Bytes(), nil
}
