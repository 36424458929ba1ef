package policy

import (
	"fmt"
	"regexp"
	"strings"
)

// ConfigError lists everything that is wrong with a policies file, or with a
// Config built in Go, so that one look is enough to put it right.
type ConfigError struct {
	// File is the name of the policies file; empty for a Config built in Go.
	File string
	// Problems is never empty, and in the order of the file's lines.
	Problems []Problem
}

// Error gives each problem a line of its own, beginning with file and line.
func (e *ConfigError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
		switch {
		case e.File != "" && p.Line > 0:
			lines[i] = fmt.Sprintf("%s:%d: %s", e.File, p.Line, p)
		case e.File != "":
			lines[i] = fmt.Sprintf("%s: %s", e.File, p)
		case p.Line > 0:
			lines[i] = fmt.Sprintf("line %d: %s", p.Line, p)
		}
	}
	return strings.Join(lines, "\n")
}

// Problem is one mistake in a configuration.
type Problem struct {
	// Line is where it is in the file, from 1; zero when there is no line.
	Line int
	// Path is where it is in the configuration, as in
	// policies.github.limits[0].rate; empty for the whole of it.
	Path string
	// Message says what is wrong and what would be right.
	Message string
}

// String is the path and the message, without the line.
func (p Problem) String() string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// join makes the path of a key. A key that would make it ambiguous is quoted.
func join(path, key string) string {
	if !plainKey.MatchString(key) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// index makes the path of a list's item.
func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// quote shows what somebody wrote, on one line and not too much of it.
func quote(s string) string {
	const enough = 60
	if runes := []rune(s); len(runes) > enough {
		s = string(runes[:enough]) + "..."
	}
	return fmt.Sprintf("%q", s)
}
