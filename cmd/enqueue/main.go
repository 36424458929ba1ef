// Command enqueue puts tasks into asynq queues for workers that Rampmeter paces,
// and tells how they fare. Run it with -h to learn more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	_ "time/tzdata" // schedules name timezones, and small containers have none

	"github.com/redis/go-redis/v9/logging"

	"github.com/rampmeter/rampmeter/internal/program"
)

func main() {
	// go-redis would write over the progress bar what the command itself is going to say
	// in a better way.
	logging.Disable()
	os.Exit(run(program.Context(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// streams is what a command talks to.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// say writes a line for people. That a pipe is closed at its other end is no
// reason to stop enqueueing.
func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}

// run is the command without its process: it works until ctx ends and returns
// the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		say(stderr, "enqueue: no command; there are %s\nRun 'enqueue -h' for help.", commandNames())
		return program.Usage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		if len(args) < 2 {
			printHelp(stdout)
			return program.OK
		}
		args = []string{args[1], "-h"} // enqueue help batch
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		say(stderr, "enqueue: %q is no command; there are %s\nRun 'enqueue -h' for help.", args[0], commandNames())
		return program.Usage
	}
	c := all[i]
	action := c.action()
	err := parse(action, args[1:], getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.printHelp(stdout)
		return program.OK
	case err != nil:
		say(stderr, "enqueue %s: %v\nRun 'enqueue %s -h' for help.", c.name, err, c.name)
		return program.Usage
	}
	if err := action.run(ctx, streams{stdin, stdout, stderr}); err != nil {
		say(stderr, "enqueue %s: %v", c.name, err)
		return program.Failed
	}
	return program.OK
}
