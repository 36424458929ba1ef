// Command bench measures Rampmeter beside its peers, in one run on one Redis, and judges
// them by one suite:
//
//	cd bench && go run .           what one decision costs
//	cd bench && go run . backlog   what becomes of a backlog of tasks
//	cd bench && go run . overhead  what a limit costs that never binds
//	cd bench && go run . conform   which promises a limiter keeps
//
// Each has a folder, and a -h that says more. The bench is a module of its own, so
// that the peers are no dependencies of Rampmeter's.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"

	"github.com/rampmeter/rampmeter/bench/backlog"
	"github.com/rampmeter/rampmeter/bench/conform"
	"github.com/rampmeter/rampmeter/bench/decisions"
	"github.com/rampmeter/rampmeter/bench/overhead"
)

func main() {
	// Peers whose calls fail under load are counted, not printed line by line.
	logging.Disable()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the command without its process.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	switch {
	case backlog.IsWorker(getenv):
		return backlog.Work(ctx, getenv, os.Stdin, stdout, stderr)
	case overhead.IsWorker(getenv):
		return overhead.Work(ctx, getenv, os.Stdin, stdout, stderr)
	case len(args) > 0 && args[0] == "backlog":
		return backlog.Run(ctx, args[1:], getenv, stdout, stderr)
	case len(args) > 0 && args[0] == "overhead":
		return overhead.Run(ctx, args[1:], getenv, stdout, stderr)
	case len(args) > 0 && args[0] == "conform":
		return conform.Run(ctx, args[1:], getenv, stdout, stderr)
	}
	return decisions.Run(ctx, args, getenv, stdout, stderr)
}
