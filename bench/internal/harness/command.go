package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/rampmeter/rampmeter/internal/program"
)

// Command is a part of the bench, under the Name that it is run by, with options O.
type Command[O any] struct {
	Name string
	// Help is what -h prints above the flags.
	Help string
	// Flags ties flags to the options.
	Flags func(*flag.FlagSet, *O)
	// Check tells what is wrong with options each fine by itself. Given are the names of
	// the flags that were set.
	Check func(o *O, given map[string]bool) error
	// Measure does it, and writes what it finds.
	Measure func(ctx context.Context, o *O, stdout, stderr io.Writer) error
}

// Run does what the args ask for and returns the exit code. An interrupt still prints what
// was measured until then.
func (c Command[O]) Run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	options, err := c.Parse(args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, strings.TrimLeft(c.Help, "\n"), "\n")
		flags := c.flags(new(O))
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return program.OK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\nRun '%s -h' for help.\n", err, c.Name)
		return program.Usage
	}
	if err := c.Measure(ctx, options, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return program.Failed
	}
	return program.OK
}

// Parse reads the flags, and those not given from their environment variables.
func (c Command[O]) Parse(args []string, getenv func(string) string) (*O, error) {
	o := new(O)
	flags := c.flags(o)
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("there is nothing to do with %q", flags.Arg(0))
	}
	if err := program.ReadEnvironment(flags, getenv); err != nil {
		return nil, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	return o, c.Check(o, given)
}

func (c Command[O]) flags(o *O) *flag.FlagSet {
	flags := flag.NewFlagSet(c.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard) // Run says what is wrong, and once
	c.Flags(flags, o)
	return flags
}

// Within returns an error if a flag's number is not from least to most; a most of zero is
// no bound.
func Within(name string, n, least, most int) error {
	switch {
	case n >= least && (n <= most || most == 0):
		return nil
	case most == 0:
		return fmt.Errorf("-%s is %d, but must be at least %d", name, n, least)
	}
	return fmt.Errorf("-%s is %d, but must be from %d to %d", name, n, least, most)
}
