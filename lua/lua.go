// Package lua holds the scripts that decide inside Redis, and nothing else. Each
// operation is a file with its contract on top: keys, arguments with units,
// reply, whether a blind retry is safe, and the oldest server it runs on. What
// operations share stands once, in parts; and each algorithm is one file in algorithms.
//
// An operation is the same script for every policy: the limits and their numbers are
// arguments, which Head makes.
package lua

import (
	"embed"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua parts/*.lua algorithms/*.lua
var files embed.FS

// Scripts are the operations. All are atomic, do bounded work, and are loaded into
// a server on first use and again after a SCRIPT FLUSH.
type Scripts struct {
	// Limits is every operation on limits, whose name comes behind the arguments that Head
	// makes: one script, for they all need the algorithms, which are most of the text.
	Limits                  *redis.Script
	Recent, Freeze, Refused *redis.Script
	// Review has tasks of the waiting line looked at anew.
	Review *redis.Script
}

// operations are those on limits: their names, and what each is made of. Reserve comes
// last, for what it needs is there by then.
var operations = []struct {
	names []string
	parts []string
	file  string
}{
	{[]string{"peek"}, nil, "peek.lua"},
	{[]string{"settle"}, []string{"line_hand", "line_tell"}, "settle.lua"},
	{[]string{"renew"}, nil, "renew.lua"},
	{[]string{"release"}, []string{"line_hand", "line_tell"}, "release.lua"},
	{[]string{"reconcile"}, nil, "reconcile.lua"},
	{[]string{"wake", "recall"}, []string{"line"}, "wake.lua"},
	{[]string{"reserve", "ask", "look", "join"}, []string{"attempt", "told"}, "reserve.lua"},
}

// New returns the operations.
var New = sync.OnceValue(func() Scripts { return WithClock(read("parts/clock.lua")) })

// WithClock returns the operations with another source of time than Redis's own
// TIME, for tests that have to say what time it is on a real server: Lua text that
// defines now_us, int and ttl_ms as parts/clock.lua does.
func WithClock(clock string) Scripts {
	if made, ok := withClock.Load(clock); ok {
		return made.(Scripts)
	}
	script := func(text ...string) *redis.Script { return redis.NewScript(strip(clock + strings.Join(text, ""))) }
	scripts := Scripts{
		Limits:  script(part("read", "fast"), makers(), part("policy"), lineMaker(), onLimits()),
		Recent:  script(algorithm("sliding_log"), read("recent.lua")),
		Freeze:  script(read("freeze.lua")),
		Refused: script(read("refused.lua")),
		Review:  script(read("review.lua")),
	}
	withClock.Store(clock, scripts)
	return scripts
}

var withClock sync.Map // Scripts by their clocks

// onLimits returns the operations on limits, each for its names.
func onLimits() string {
	text := ""
	for _, o := range operations {
		text += "if operation == '" + strings.Join(o.names, "' or operation == '") + "' then\n" +
			part(o.parts...) + read(o.file) + "end\n"
	}
	return text
}

// makers returns the functions that make algorithms, for those that a call needs: to make
// all of them would take longer than most calls.
func makers() string {
	text := "local make = {}\n" + function("instants", part("instants")+"return instants\n")
	for _, name := range algorithms() {
		text += function(name, algorithm(name)+"return "+name+"\n")
	}
	return text
}

// lineMaker returns the function that makes the waiting line, for who joins it or asks,
// behind the name of the operation.
func lineMaker() string {
	return "local operation = next_text()\n" + function("line", part("line", "line_join", "line_hand", "line_stand")+"return line\n")
}

func function(name, body string) string { return "function make." + name + "()\n" + body + "end\n" }

// algorithm returns the text of an algorithm.
func algorithm(name string) string { return read("algorithms/" + name + ".lua") }

// algorithms returns the names of all of them.
func algorithms() []string {
	entries, err := fs.Glob(files, "algorithms/*.lua")
	if err != nil {
		panic("lua: " + err.Error()) // the pattern is right
	}
	var names []string
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(path.Base(entry), ".lua"))
	}
	return names
}

func part(names ...string) string {
	var text strings.Builder
	for _, name := range names {
		text.WriteString(read("parts/" + name + ".lua"))
	}
	return text.String()
}

// strip takes away what is for readers: a server keeps each script's text for good.
func strip(text string) string {
	var stripped strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			stripped.WriteString(line + "\n")
		}
	}
	return stripped.String()
}

func read(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("lua: " + err.Error()) // the embedded files are part of the build
	}
	return string(text)
}
