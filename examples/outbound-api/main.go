// Command outbound-api shows what Rampmeter is for: three worker processes share
// the quota of one API, and not one call is too many. It needs nothing but Go:
//
//	go run ./examples/outbound-api
//
// It starts an API that enforces a quota by its own clock, a Redis (embedded, or
// yours with -redis), and three workers as processes of their own; enqueues a few
// hundred tasks; and tells what the API saw. With -naive the workers use the usual
// retry-after error instead.
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
	"time"

	"github.com/rampmeter/rampmeter/internal/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := program.OK
	if text := os.Getenv(jobVariable); text == "" {
		code = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	} else if err := runWorker(text, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = program.Failed
	}
	stop()
	os.Exit(code)
}

// timeLimit ends a run that does not come to its end by itself.
const timeLimit = 58 * time.Second

type options struct {
	redis   string
	naive   bool
	tasks   int
	workers int
	serve   string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("outbound-api", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.redis, "redis", "", "use the Redis at this `URI`, as in redis://127.0.0.1:6379, instead of an embedded one")
	flags.BoolVar(&o.naive, "naive", false, "use the usual retry-after error instead of Rampmeter, for comparison")
	flags.IntVar(&o.tasks, "tasks", 800, "how many tasks to enqueue, at most 2000")
	flags.IntVar(&o.workers, "workers", 3, "how many worker processes to start, at most 16")
	flags.StringVar(&o.serve, "serve", "", "run nothing but the API, on this `address`, until interrupted")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "outbound-api: three worker processes share the quota of one API.\n\n"+
			"  go run ./examples/outbound-api          with Rampmeter\n"+
			"  go run ./examples/outbound-api -naive   with the usual retry-after error\n\n"+
			"The exit status is 1 if any call was over the quota.\n\nFlags:\n")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return program.OK
	case err != nil:
		return program.Usage
	}
	if err := o.validate(flags.NArg()); err != nil {
		fmt.Fprintf(stderr, "outbound-api: %v; see -h\n", err)
		return program.Usage
	}

	code, err := o.start(ctx, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "outbound-api: %v\n", err)
		return program.Failed
	}
	return code
}

func (o *options) validate(positional int) error {
	switch {
	case positional > 0:
		return errors.New("no arguments are expected, only flags")
	case o.tasks < 1 || o.tasks > 2000:
		return fmt.Errorf("-tasks is %d, not from 1 to 2000", o.tasks)
	case o.workers < 1 || o.workers > 16:
		return fmt.Errorf("-workers is %d, not from 1 to 16", o.workers)
	}
	return nil
}

func (o *options) start(ctx context.Context, stdout, stderr io.Writer) (int, error) {
	if o.serve != "" {
		return program.OK, serveAPI(ctx, o.serve, stderr)
	}
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	seen, err := demonstrate(ctx, o, stderr)
	if err != nil {
		return program.Failed, err
	}
	seen.print(stdout)
	if seen.over > 0 || seen.done < o.tasks {
		return program.Failed, nil
	}
	return program.OK, nil
}
