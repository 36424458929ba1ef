package backlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
)

// turn is one contender in one scenario, once.
type turn struct {
	*harness.Session

	scenario  *scenario
	contender *contender
	options   *options
	bullMQ    *bullMQFiles // nil if it is not there

	api   *api
	fleet *fleet
	seen  observation
}

// observation is what was seen of a turn; figures are reckoned from it.
type observation struct {
	tasks    int
	calls    []call // in order of arrival
	attempts int
	tempo    []pulse // when the attempts were
	began    time.Time
	commands int64 // from the start to the end
	archived int
	// perEnqueue is the producer's commands for each task; they are not in commands.
	perEnqueue float64
	// cut tells that the turn ended before its tasks did.
	cut bool
	// parked is when every task had been seen once; nil if that was no sooner than
	// the end, as where nothing is put off.
	parked *parking
}

// parking is how things stood when no task was left that had not been seen.
type parking struct {
	at       time.Time
	commands int64
	attempts int
	called   int   // tasks that had started
	bytes    int64 // of Rampmeter's keys
}

// run empties the database, fills the queue, and lets the workers have at it.
func (t *turn) run(ctx context.Context) (err error) {
	if err := t.Meter.Client.FlushDB(ctx).Err(); err != nil {
		return err
	}
	t.api = listenAPI()
	defer t.api.server.Close()

	t.show("enqueueing")
	t.seen.tasks = t.scenario.tasks()
	before, during := t.portions()
	if err := t.enqueueBefore(ctx, before); err != nil {
		return err
	}

	folder, err := os.MkdirTemp("", "rampmeter-backlog-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := t.startFleet(folder); err != nil {
		return err
	}
	err = t.watch(ctx, during)
	if err = errors.Join(err, t.fleet.stop()); err != nil {
		return err
	}
	t.seen.calls = t.api.record()
	t.seen.attempts, t.seen.tempo = t.fleet.attempts, t.fleet.tempo // nobody tells any more
	return t.Meter.Client.FlushDB(ctx).Err()
}

// startFleet starts the worker processes; folder is for what they read.
func (t *turn) startFleet(folder string) (err error) {
	j := &job{
		Kind: t.contender.kind, Redis: harness.URI(t.Redis), API: t.api.server.URL + "/" + t.scenario.takes(), Concurrency: t.options.concurrency,
		Limit: t.scenario.limit, Intervals: t.contender.intervals, Spread: t.contender.spread,
	}
	if j.Kind == rampmeter {
		j.Policies = filepath.Join(folder, "policies.yaml")
		if err := os.WriteFile(j.Policies, []byte(t.contender.policiesFile(j.Limit)), 0o600); err != nil {
			return err
		}
	}
	start := func() (*program.Worker, error) { return program.StartSelf(jobVariable, j) }
	if j.Kind == bullMQ {
		start = func() (*program.Worker, error) {
			return program.StartWorker(jobVariable, j, t.bullMQ.node, t.bullMQ.script)
		}
	}
	t.fleet, err = startFleet(t.options.workers, t.seen.tasks, start)
	return err
}

// ourKeys are all of Rampmeter's.
const ourKeys = "rm:*"

// lookEvery is how often to look.
const lookEvery = 20 * time.Millisecond

// idleFor is after how long without a call to ask what was archived.
var idleFor = 3 * time.Second

// watch lets the workers go, enqueues the rest, and looks on until the turn is over.
func (t *turn) watch(ctx context.Context, rest []lane) error {
	before, err := t.Meter.Spent(ctx)
	if err != nil {
		return err
	}
	t.seen.began = time.Now()
	if err := t.fleet.goAhead(); err != nil {
		return err
	}
	enqueued, giveUp := t.enqueueDuring(ctx, rest)
	defer giveUp()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-enqueued:
			if err != nil {
				return err
			}
			t.discount(rest)
			enqueued = nil // it is said once
		case <-ticker.C:
		}
		if over, err = t.look(ctx, before); err != nil {
			return err
		}
	}
	after, err := t.Meter.Spent(ctx)
	t.seen.commands = after.Sub(before).Commands
	return err
}

// look takes down how things stand and reports whether the turn is over.
func (t *turn) look(ctx context.Context, before harness.Spent) (over bool, err error) {
	attempts, distinct, done, err := t.fleet.told()
	if err != nil {
		return true, err
	}
	called, last := t.api.count()
	t.show(fmt.Sprintf("%d of %d done", called, t.seen.tasks))
	if t.seen.parked == nil && distinct == t.seen.tasks && t.seen.tasks-called > t.options.workers*t.options.concurrency {
		if err := t.park(ctx, before, attempts, called); err != nil {
			return true, err
		}
	}
	now := time.Now()
	switch {
	case called >= t.seen.tasks && attempts >= called && done == attempts:
		return true, nil
	case now.Sub(t.seen.began) > t.options.timeoutOf(t.scenario), t.stopsAt(now):
		t.seen.cut = true
		return true, t.countArchived(ctx)
	case now.Sub(latest(last, t.seen.began)) > idleFor && t.contender.kind != bullMQ:
		if err := t.countArchived(ctx); err != nil {
			return true, err
		}
		return t.seen.archived > 0 && called+t.seen.archived >= t.seen.tasks, nil
	}
	return false, nil
}

// park takes down that all tasks have been seen.
func (t *turn) park(ctx context.Context, before harness.Spent, attempts, called int) error {
	now, err := t.Meter.Spent(ctx)
	if err != nil {
		return err
	}
	t.seen.parked = &parking{at: time.Now(), commands: now.Sub(before).Commands, attempts: attempts, called: called}
	if t.contender.kind != rampmeter {
		return nil
	}
	return t.Meter.Exclude(ctx, func() error {
		t.seen.parked.bytes, err = t.Meter.Memory(ctx, ourKeys, 1000)
		return err
	})
}

// stopsAt reports whether the turn has lasted as long as it is wanted to.
func (t *turn) stopsAt(now time.Time) bool {
	if t.options.stopAfter == 0 {
		return false
	}
	since := t.seen.began
	if t.seen.parked != nil {
		since = t.seen.parked.at
	} else if t.contender.parks() {
		return false // not yet
	}
	return now.Sub(since) > t.options.stopAfter
}

// countArchived asks asynq how many tasks it has given up.
func (t *turn) countArchived(ctx context.Context) error {
	if t.contender.kind == bullMQ {
		return nil
	}
	return t.Meter.Exclude(ctx, func() error {
		info, err := asynq.NewInspectorFromRedisClient(t.Meter.Client).GetQueueInfo("default")
		if err == nil {
			t.seen.archived = info.Archived
		}
		return err
	})
}

func (t *turn) show(what string) {
	t.Progress.Show("%s, %s: %s", t.scenario.name, t.contender.name, what)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
