package harness

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Meter tells what others than the bench have Redis do.
type Meter struct {
	// Client is for what the bench itself asks of Redis; see Exclude.
	Client *redis.Client

	aside int64 // commands that are the bench's own
}

// Spent is what Redis has spent since it began.
type Spent struct {
	CPU time.Duration
	// Commands is what Redis counts as total_commands_processed, without the bench's own:
	// each that a client sends, and each that a script calls, so that an EVALSHA which
	// calls six commands is seven. This includes what asynq does in the background.
	Commands int64
}

// NewMeter connects, so that connecting is not counted.
func NewMeter(ctx context.Context, options *redis.Options) (*Meter, error) {
	own := *options
	own.PoolSize = 1
	m := &Meter{Client: redis.NewClient(&own)}
	if err := m.Client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, m.Client.Close())
	}
	return m, nil
}

// Close closes the connection.
func (m *Meter) Close() { _ = m.Client.Close() }

// Spent reads the meter, which is not counted.
func (m *Meter) Spent(ctx context.Context) (s Spent, err error) {
	info, err := m.Client.InfoMap(ctx, "cpu", "stats").Result()
	if err != nil {
		return s, err
	}
	user, err1 := strconv.ParseFloat(info["CPU"]["used_cpu_user"], 64)
	system, err2 := strconv.ParseFloat(info["CPU"]["used_cpu_sys"], 64)
	commands, err3 := strconv.ParseInt(info["Stats"]["total_commands_processed"], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return s, fmt.Errorf("INFO: %w", err)
	}
	s.CPU = time.Duration((user + system) * float64(time.Second))
	s.Commands = commands - m.aside
	m.aside++ // this INFO, which counts itself from the next one on
	return s, nil
}

// Sub is what was spent since then.
func (s Spent) Sub(then Spent) Spent { return Spent{s.CPU - then.CPU, s.Commands - then.Commands} }

// Discount leaves so many commands uncounted.
func (m *Meter) Discount(commands int64) { m.aside += commands }

// Exclude does something on the same Redis whose commands are not to be counted. What
// others ask for in the meantime is not counted either, so it should be short.
func (m *Meter) Exclude(ctx context.Context, do func() error) error {
	before, err := m.Spent(ctx)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := m.Spent(ctx)
	m.Discount(after.Commands - before.Commands)
	return err
}

// Memory is the memory of the keys that match, of which so many members stand for all of
// them; 0 means all.
func (m *Meter) Memory(ctx context.Context, match string, members int) (sum int64, err error) {
	for cursor := uint64(0); ; {
		var keys []string
		if keys, cursor, err = m.Client.Scan(ctx, cursor, match, 10_000).Result(); err != nil {
			return 0, err
		}
		pipe := m.Client.Pipeline()
		for _, key := range keys {
			pipe.MemoryUsage(ctx, key, members)
		}
		answers, err := pipe.Exec(ctx)
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, err
		}
		for _, answer := range answers {
			sum += answer.(*redis.IntCmd).Val() // 0 for a key that has just expired
		}
		if cursor == 0 {
			return sum, nil
		}
	}
}
