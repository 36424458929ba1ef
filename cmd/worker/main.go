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

	"github.com/redis/go-redis/v9/logging"

	"github.com/rampmeter/rampmeter/internal/program"
)

func main() {
	// go-redis would write lines of its own between those of the log. It returns
	// the same errors to those who asked, and they are logged.
	logging.Disable()
	os.Exit(run(program.Context(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// run is the command without its process: it works until ctx ends and returns
// the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(stdout)
		return program.OK
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "worker: %v\nRun 'worker -h' for help.\n", err)
		return program.Usage
	}
	if err := work(ctx, opts, program.NewLogger(stderr, opts.logLevel, "15:04:05.000")); err != nil {
		_, _ = fmt.Fprintf(stderr, "worker: %v\n", err)
		return program.Failed
	}
	return program.OK
}
