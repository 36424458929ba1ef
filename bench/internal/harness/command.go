package harness

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// Exit codes of a command.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Command is a part of the bench, under the Name that it is run by.
type Command[O any] struct {
	Name string
	// Options reads what is asked for; flag.ErrHelp asks for Help.
	Options func() (O, error)
	Help    func(io.Writer)
	// Measure does it.
	Measure func(O) error
}

// Run runs the command and returns its exit code.
func (c Command[O]) Run(stdout, stderr io.Writer) int {
	options, err := c.Options()
	if errors.Is(err, flag.ErrHelp) {
		c.Help(stdout)
		return ExitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\nRun '%s -h' for help.\n", err, c.Name)
		return ExitUsage
	}
	if err := c.Measure(options); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return ExitFailed
	}
	return ExitOK
}
