package decisions

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// Run measures what the args ask for and returns the exit code. An interrupt still
// prints what was measured until then.
func Run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	return harness.Command[*options]{
		Name:    "bench",
		Options: func() (*options, error) { return parseOptions(args, getenv) },
		Help:    printHelp,
		Measure: func(o *options) error { return benchmark(ctx, o, stdout, stderr) },
	}.Run(stdout, stderr)
}

func benchmark(ctx context.Context, opts *options, stdout, stderr io.Writer) (err error) {
	server, stop, err := harness.OpenRedis(ctx, opts.redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	contenders, leftOut := admit(opts.contenders())
	for _, line := range leftOut {
		fmt.Fprintf(stderr, "left out: %s\n", line)
	}
	stopProfile, err := harness.StartProfile(opts.cpuProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()

	report, err := (&bench{
		redis:      server,
		contenders: contenders,
		options:    opts,
		progress:   harness.NewProgress(stderr),
	}).run(ctx)
	if opts.json {
		return errors.Join(report.writeJSON(stdout), err)
	}
	return errors.Join(report.writeText(stdout), err)
}
