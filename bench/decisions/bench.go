package decisions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// benchmark measures what the options ask for and prints it.
func benchmark(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	session, err := harness.Open(ctx, o.redis, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	stopProfile, err := harness.StartProfile(o.cpuProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()

	report, err := (&bench{Session: session, contenders: o.contenders(), options: o}).run(ctx)
	session.Progress.Clear()
	if o.json {
		return errors.Join(harness.WriteJSON(stdout, report), err)
	}
	return errors.Join(report.writeText(stdout), err)
}

// bench is one run: cells of so many callers on so many keys, in each of which
// the contenders take turns.
type bench struct {
	*harness.Session

	contenders []contender // the references first
	options    *options
}

// run measures until all is measured or ctx ends. It empties the database before
// every cell. With an error comes the report of what was measured until then.
func (b *bench) run(ctx context.Context) (*report, error) {
	report := &report{
		Rounds: b.options.rounds,
		Slice:  b.options.slice.String(),
		Pool:   b.options.pool,
		Redis:  b.Version,
	}
	b.Progress.Total = len(b.contenders) * (1 + len(b.options.keys)*len(b.options.callers))
	for _, keys := range b.options.keys {
		for _, callers := range b.options.callers {
			cell, err := b.cell(ctx, callers, keys)
			if err != nil {
				return report, fmt.Errorf("%d callers on %d keys: %w", callers, keys, err)
			}
			report.Cells = append(report.Cells, cell...)
		}
	}
	for _, c := range b.contenders {
		b.Progress.Step("bytes per key, %s", c.name)
		m, err := b.weigh(ctx, c)
		if ctx.Err() != nil {
			return report, ctx.Err()
		}
		if err != nil {
			m.Error = err.Error() // its own fault; the others are measured all the same
		}
		report.Memory = append(report.Memory, m)
	}
	return report, nil
}

// cell lets every contender have its turn in each round.
func (b *bench) cell(ctx context.Context, callers, keys int) ([]result, error) {
	if err := b.Meter.Client.FlushDB(ctx).Err(); err != nil {
		return nil, err
	}
	names := keyNames(keys)
	deciders := make([]decide, len(b.contenders))
	for i, c := range b.contenders {
		client := b.client()
		defer client.Close()
		var err error
		if deciders[i], err = c.open(client, c.generous(), names); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		// Connections are made and scripts are loaded before it counts.
		if _, err := measure(ctx, b.Meter, deciders[i], callers, keys, b.warmUp()); err != nil {
			return nil, err
		}
	}
	turns := make([][]*slice, len(b.contenders))
	for round := range b.options.rounds {
		for i, c := range b.contenders {
			b.Progress.Show("%d callers on %d keys, round %d of %d: %s", callers, keys, round+1, b.options.rounds, c.name)
			turn, err := measure(ctx, b.Meter, deciders[i], callers, keys, b.options.slice)
			if err != nil {
				return nil, err
			}
			turns[i] = append(turns[i], turn)
		}
	}
	b.Progress.Finished += len(b.contenders)

	results := make([]result, len(b.contenders))
	for i, c := range b.contenders {
		results[i] = summarize(c.name, callers, keys, turns[i])
		results[i].AgainstBare = ratio(turns[i], turns[0])
		results[i].AgainstRedisRate = ratio(turns[i], turns[1])
	}
	return results, nil
}

// client is a contender's own, the same for each.
func (b *bench) client() *redis.Client {
	options := *b.Redis
	options.PoolSize = b.options.pool
	return redis.NewClient(&options)
}

func (b *bench) warmUp() time.Duration { return min(b.options.slice/5, 100*time.Millisecond) }
