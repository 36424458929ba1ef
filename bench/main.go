package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Exit codes of the command.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// Peers whose calls fail under load are counted, not printed line by line.
	logging.Disable()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command without its process. An interrupt still prints what was
// measured until then.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	opts, err := parseOptions(args, getenv)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(stdout)
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\nRun 'bench -h' for help.\n", err)
		return exitUsage
	}
	if err := benchmark(ctx, opts, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitFailed
	}
	return exitOK
}

func benchmark(ctx context.Context, opts *options, stdout, stderr io.Writer) (err error) {
	server, stop, err := openRedis(ctx, opts.redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	contenders, leftOut := admit(opts.contenders())
	for _, line := range leftOut {
		fmt.Fprintf(stderr, "left out: %s\n", line)
	}
	stopProfile, err := startProfile(opts.cpuProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()

	report, err := (&bench{
		redis:      server,
		contenders: contenders,
		options:    opts,
		progress:   newProgress(stderr),
	}).run(ctx)
	if opts.json {
		return errors.Join(report.writeJSON(stdout), err)
	}
	return errors.Join(report.writeText(stdout), err)
}

// startProfile writes a CPU profile to a file until it is stopped. Without a path
// it does nothing.
func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("-cpuprofile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("-cpuprofile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// openRedis connects to the Redis at a URI, or starts one where there is none.
// The returned function closes what was opened.
func openRedis(ctx context.Context, uri string) (*redis.Options, func() error, error) {
	if uri == "" {
		server, err := throttletest.StartRedis(ctx, throttletest.RedisConfig{})
		if err != nil {
			return nil, nil, err
		}
		return server.Options(), server.Close, nil
	}
	options, err := redis.ParseURL(uri)
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	size, err := client.DBSize(ctx).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("-redis: %w", err)
	}
	if size > 0 {
		return nil, nil, fmt.Errorf("-redis: database %d holds %d keys, and the bench empties its database again and again; "+
			"name an empty one, as in redis://host:6379/9", options.DB, size)
	}
	return options, func() error { return nil }, nil
}
