package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/rampmeter/rampmeter/internal/program"
)

// action is what a command does, and the options that say how.
type action interface {
	// flags ties the flags to the options, with the defaults in place.
	flags(fs *flag.FlagSet)
	// check takes what is not a flag and tells everything that is wrong with the
	// command line.
	check(positional []string) error
	// run does it. It returns when ctx ends, at the latest.
	run(ctx context.Context, s streams) error
}

// parse reads flags and positionals in any order, and for flags not given the
// environment. It returns flag.ErrHelp when help was asked for.
func parse(a action, args []string, getenv func(string) string) error {
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run says what is wrong, and once
	a.flags(fs)
	var positional []string
	for len(args) > 0 {
		if err := fs.Parse(args); err != nil {
			return err
		}
		read := len(args) - fs.NArg()
		if read > 0 && args[read-1] == "--" { // from here on nothing is a flag
			positional = append(positional, fs.Args()...)
			break
		}
		if fs.NArg() == 0 {
			break
		}
		positional = append(positional, fs.Arg(0))
		args = fs.Args()[1:]
	}
	return errors.Join(program.ReadEnvironment(fs, getenv), a.check(positional))
}

// pairs is a flag value that may be given again and again, one pair at a time.
type pairs struct {
	separator string // between name and value
	values    map[string]string
}

func (p *pairs) String() string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		texts = append(texts, name+p.separator+p.values[name])
	}
	return strings.Join(texts, " ")
}

// Lines implements [program.Lines].
func (p *pairs) Lines() {}

func (p *pairs) Set(text string) error {
	name, value, found := strings.Cut(text, p.separator)
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	if !found || name == "" {
		return fmt.Errorf("write it as NAME%sVALUE", p.separator)
	}
	if _, twice := p.values[name]; twice {
		return fmt.Errorf("%s is given twice", name)
	}
	if p.values == nil {
		p.values = map[string]string{}
	}
	p.values[name] = value
	return nil
}

// one returns the only positional argument.
func one(positional []string, missing string) (string, error) {
	switch len(positional) {
	case 0:
		return "", errors.New(missing)
	case 1:
		return positional[0], nil
	}
	return "", fmt.Errorf("unexpected argument %q after %q", positional[1], positional[0])
}
