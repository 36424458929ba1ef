package overhead

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// bench is one run: one worker process, for which the kinds of tasks take turns.
type bench struct {
	redis    *redis.Options
	options  *options
	progress *harness.Progress

	admin  *redis.Client
	worker *process
	aside  int64 // commands that are the bench's own
}

// turn is what was measured of one turn.
type turn struct {
	tasks int
	took  time.Duration
	// worker and redis are the CPU time that each has spent.
	worker, redis time.Duration
	commands      int64
}

// run measures until all is measured or ctx ends, and leaves the database empty. With an
// error comes the report of what was measured until then.
func (b *bench) run(ctx context.Context) (_ *report, err error) {
	own := *b.redis
	own.PoolSize = 1 // so that connecting is not counted
	b.admin = redis.NewClient(&own)
	defer b.admin.Close()
	report := &report{
		Redis: harness.RedisVersion(ctx, b.admin), Tasks: b.options.tasks,
		Concurrency: b.options.concurrency, Rounds: b.options.rounds,
	}
	folder, err := os.MkdirTemp("", "rampmeter-overhead-")
	if err != nil {
		return report, err
	}
	defer func() {
		err = errors.Join(err, b.worker.stop(), b.admin.FlushDB(context.WithoutCancel(ctx)).Err(), os.RemoveAll(folder))
		b.progress.Clear()
	}()
	policies := filepath.Join(folder, "policies.yaml")
	if err := os.WriteFile(policies, []byte(policiesFile()), 0o600); err != nil {
		return report, err
	}
	j := &job{Redis: uri(b.redis), Policies: policies, Concurrency: b.options.concurrency, CPUProfile: b.options.cpuProfile}
	if !b.options.idle {
		api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer api.Close()
		j.API = api.URL
	}
	if b.worker, err = startWorker(j); err != nil {
		return report, err
	}
	return report, b.measure(ctx, report)
}

// measure lets every kind have its turn in each round, behind one that is not counted:
// the worker connects in it, and the scripts are loaded.
func (b *bench) measure(ctx context.Context, report *report) error {
	chosen := b.options.kinds()
	turns := make([][]turn, len(chosen))
	defer func() { report.summarize(chosen, turns) }()
	b.progress.Total = len(chosen) * (b.options.rounds + 1)
	for round := range b.options.rounds + 1 {
		for i, k := range chosen {
			b.progress.Step("%s", k.name)
			tasks := b.options.tasks
			if round == 0 {
				tasks = min(tasks, warmUp)
			}
			t, err := b.turn(ctx, k, tasks)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
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
	cpuBefore, commandsBefore, err := b.spent(ctx)
	if err != nil {
		return turn{}, err
	}
	done, err := b.worker.work(ctx, order{Kind: k.name, Tasks: tasks})
	if err != nil {
		return turn{}, err
	}
	cpu, commands, err := b.spent(ctx)
	if err != nil {
		return turn{}, err
	}
	return turn{tasks: tasks, took: done.Took, worker: done.CPU, redis: cpu - cpuBefore, commands: commands - commandsBefore}, nil
}

// producers is how many enqueue at once.
const producers = 8

func (b *bench) enqueue(ctx context.Context, k kind, tasks int) error {
	shared := redis.NewClient(b.redis)
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

// spent is the CPU time that Redis has spent since it began, and the commands that it
// was sent or that scripts called, without the bench's own.
func (b *bench) spent(ctx context.Context) (cpu time.Duration, commands int64, err error) {
	info, err := b.admin.InfoMap(ctx, "cpu", "stats").Result()
	if err != nil {
		return 0, 0, err
	}
	var errs []error
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info["CPU"][name], 64)
		cpu += time.Duration(seconds * float64(time.Second))
		errs = append(errs, err)
	}
	commands, err = strconv.ParseInt(info["Stats"]["total_commands_processed"], 10, 64)
	commands -= b.aside
	b.aside++ // this INFO, which counts itself from the next one on
	return cpu, commands, errors.Join(append(errs, err)...)
}
