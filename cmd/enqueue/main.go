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
	"os/signal"
	"syscall"
	_ "time/tzdata" // schedules name timezones, and small containers have none

	"github.com/redis/go-redis/v9"
)

// Exit codes of the command.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	redis.SetLogger(silent{})
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals // whoever asks twice does not want to wait
		os.Exit(exitFailed)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr))
}

// silent keeps the Redis client from writing over the progress bar what the
// command itself is going to say in a better way.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

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
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help", "help":
		if len(args) < 2 {
			printHelp(stdout)
			return exitOK
		}
		args = []string{args[1], "-h"} // enqueue help batch
	}
	c, ok := findCommand(args[0])
	if !ok {
		say(stderr, "enqueue: %q is no command; there are %s\nRun 'enqueue -h' for help.", args[0], commandNames())
		return exitUsage
	}
	action := c.action()
	err := parse(action, args[1:], getenv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.printHelp(stdout)
		return exitOK
	case err != nil:
		say(stderr, "enqueue %s: %v\nRun 'enqueue %s -h' for help.", c.name, err, c.name)
		return exitUsage
	}
	if err := action.run(ctx, streams{stdin, stdout, stderr}); err != nil {
		say(stderr, "enqueue %s: %v", c.name, err)
		return exitFailed
	}
	return exitOK
}
