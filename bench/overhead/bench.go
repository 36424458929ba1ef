package overhead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
)

// benchmark measures what the options ask for and prints it.
func benchmark(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	session, err := harness.Open(ctx, o.redis, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	report, err := (&bench{Session: session, options: o}).run(ctx)
	session.Progress.Clear()
	if o.json {
		return errors.Join(harness.WriteJSON(stdout, report), err)
	}
	return errors.Join(report.writeText(stdout), err)
}

// bench is one run: one worker process, for which the kinds of tasks take turns.
type bench struct {
	*harness.Session

	options *options
	worker  *program.Worker
}

// turn is what was measured of one turn.
type turn struct {
	tasks  int
	took   time.Duration
	worker time.Duration // of CPU
	redis  harness.Spent
}

// run measures until all is measured or ctx ends. With an error comes the report of what
// was measured until then.
func (b *bench) run(ctx context.Context) (_ *report, err error) {
	report := &report{
		Redis: b.Version, Tasks: b.options.tasks,
		Concurrency: b.options.concurrency, Rounds: b.options.rounds,
	}
	folder, err := os.MkdirTemp("", "rampmeter-overhead-")
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	policies := filepath.Join(folder, "policies.yaml")
	if err := os.WriteFile(policies, []byte(policiesFile), 0o600); err != nil {
		return report, err
	}
	j := &job{Redis: harness.URI(b.Redis), Policies: policies, Concurrency: b.options.concurrency, CPUProfile: b.options.cpuProfile}
	if !b.options.idle {
		api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer api.Close()
		j.API = api.URL
	}
	if b.worker, err = program.StartSelf(jobVariable, j); err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, b.worker.Stop()) }()
	return report, b.measure(ctx, report)
}

// measure lets every kind have its turn in each round, behind one that is not counted:
// the worker connects in it, and the scripts are loaded.
func (b *bench) measure(ctx context.Context, report *report) error {
	chosen := b.options.kinds()
	turns := make([][]turn, len(chosen))
	defer func() { report.summarize(chosen, turns) }()
	b.Progress.Total = len(chosen) * (b.options.rounds + 1)
	for round := range b.options.rounds + 1 {
		for i, k := range chosen {
			b.Progress.Step("%s", k)
			tasks := b.options.tasks
			if round == 0 {
				tasks = min(tasks, warmUp)
			}
			t, err := b.turn(ctx, k, tasks)
			if err != nil {
				return fmt.Errorf("%s: %w", k, err)
			}
			if round > 0 {
				turns[i] = append(turns[i], t)
			}
		}
	}
	return nil
}

// warmUp is how many tasks the turns have that are not counted.
const warmUp = 2000

// turn enqueues tasks, has the worker work them off, and measures that.
func (b *bench) turn(ctx context.Context, k kind, tasks int) (turn, error) {
	if err := b.enqueue(ctx, k, tasks); err != nil {
		return turn{}, fmt.Errorf("enqueueing: %w", err)
	}
	before, err := b.Meter.Spent(ctx)
	if err != nil {
		return turn{}, err
	}
	done, err := b.work(ctx, order{Kind: string(k), Tasks: tasks})
	if err != nil {
		return turn{}, err
	}
	after, err := b.Meter.Spent(ctx)
	return turn{tasks: tasks, took: done.Took, worker: done.CPU, redis: after.Sub(before)}, err
}

// work has the worker work off what is in the queue. When ctx ends first, the worker ends.
func (b *bench) work(ctx context.Context, o order) (d done, err error) {
	defer context.AfterFunc(ctx, b.worker.End)()
	if err = json.NewEncoder(b.worker.Stdin).Encode(o); err == nil {
		err = b.worker.Words.Decode(&d)
	}
	if err != nil {
		err = errors.Join(ctx.Err(), fmt.Errorf("the worker process ended: %w", err))
	}
	return d, err
}

// producers is how many enqueue at once.
const producers = 8

func (b *bench) enqueue(ctx context.Context, k kind, tasks int) error {
	shared := redis.NewClient(b.Redis)
	defer shared.Close()
	client := asynq.NewClientFromRedisClient(shared)
	var all sync.WaitGroup
	failed := make([]error, producers)
	for p := range producers {
		all.Go(func() {
			for number := p; number < tasks && failed[p] == nil; number += producers {
				_, failed[p] = client.EnqueueContext(ctx, k.task(number))
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}
