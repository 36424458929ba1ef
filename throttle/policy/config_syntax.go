package policy

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

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
