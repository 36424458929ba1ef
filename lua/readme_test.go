package lua

import (
	"os"
	"path"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// README.md tells of every operation, every algorithm and every key of the line.
func TestReadmeIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	tells := func(what, name string) {
		assert.Contains(t, string(text), name, "README.md does not tell of this "+what)
	}
	for _, o := range operations {
		for _, name := range o.names {
			assert.Regexp(t, "(?m)^\\| .*`"+name+"`.*, `"+regexp.QuoteMeta(o.file)+"`", string(text), "its line in the table of operations")
		}
	}
	for _, file := range scriptFiles(t) {
		tells("operation", "`"+file+"`")
	}
	for _, name := range algorithms() {
		tells("algorithm", "\n| `"+name+"` |")
	}
	keys := lineKeys(t)
	assert.Contains(t, keys, "/row:<row>", "else this does not see them")
	for _, key := range keys {
		tells("key", "\n| its `"+key+"` |")
	}
	scripts := reflect.TypeFor[Scripts]()
	for i := range scripts.NumField() {
		if name := strings.ToLower(scripts.Field(i).Name); name != "limits" {
			tells("script", "\n| `"+name+"`, ")
		}
	}
}

// Every operation begins with its contract.
func TestOperationsHaveContracts(t *testing.T) {
	t.Parallel()
	for _, file := range scriptFiles(t) {
		contract, _, _ := strings.Cut(read(file), "\n\n")
		for _, part := range []string{"KEYS", "\n-- Reply ", "\n-- Worst case: ", "\n-- A blind retry ", "\n-- Needs Redis "} {
			assert.Contains(t, contract, part, file)
		}
	}
}

// scriptFiles are the files of operations.
func scriptFiles(t *testing.T) []string {
	t.Helper()
	entries, err := files.ReadDir(".")
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		if path.Ext(entry.Name()) == ".lua" {
			names = append(names, entry.Name())
		}
	}
	assert.Contains(t, names, "reserve.lua")
	return names
}

// lineKeys are the keys of a line that the head of its file lists.
func lineKeys(t *testing.T) []string {
	t.Helper()
	var keys []string
	for _, found := range regexp.MustCompile(`(?m)^--   (/[a-z]+(?::<[a-z ]+>)?)`).FindAllStringSubmatch(read("parts/line.lua"), -1) {
		keys = append(keys, found[1])
	}
	return keys
}
