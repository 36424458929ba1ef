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
	return errors.Join(readEnvironment(fs, getenv), a.check(positional))
}

func readEnvironment(fs *flag.FlagSet, getenv func(string) string) error {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var problems []error
	fs.VisitAll(func(f *flag.Flag) {
		value := getenv(envName(f.Name))
		if given[f.Name] || value == "" {
			return
		}
		values := []string{value}
		if _, many := f.Value.(*pairs); many {
			values = strings.Split(strings.TrimSpace(value), "\n")
		}
		for _, value := range values {
			if err := fs.Set(f.Name, value); err != nil {
				problems = append(problems, fmt.Errorf("%s=%q: %w", envName(f.Name), value, err))
			}
		}
	})
	return errors.Join(problems...)
}

// envName is the environment variable that stands in for a flag.
func envName(flagName string) string {
	return "RAMPMETER_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
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
