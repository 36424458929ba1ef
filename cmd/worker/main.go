// Command worker runs the tasks of asynq queues at the pace their policies
// allow. It knows the built-in task http:request; run it with -h to learn more.
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

	"github.com/redis/go-redis/v9/logging"
)

// Exit codes of the command.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// go-redis would write lines of its own between those of the log. It returns
	// the same errors to those who asked, and they are logged.
	logging.Disable()

	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals // whoever asks twice does not want to wait
		os.Exit(exitFailed)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// run is the command without its process: it works until ctx ends and returns
// the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(stdout)
		return exitOK
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "worker: %v\nRun 'worker -h' for help.\n", err)
		return exitUsage
	}
	if err := work(ctx, opts, newLogger(stderr, opts.logLevel)); err != nil {
		_, _ = fmt.Fprintf(stderr, "worker: %v\n", err)
		return exitFailed
	}
	return exitOK
}
