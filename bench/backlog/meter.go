package backlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// meter counts what Redis is asked to do by others than the bench.
//
// A command is what Redis counts as one in total_commands_processed: each that a
// client sends, and each that a script calls, so that an EVALSHA which calls six
// commands is seven. This includes what asynq does in the background.
type meter struct {
	client *redis.Client
	aside  int64 // commands that are the bench's own
}

// newMeter connects, so that connecting is not counted.
func newMeter(ctx context.Context, options *redis.Options) (*meter, error) {
	own := *options
	own.PoolSize = 1
	m := &meter{client: redis.NewClient(&own)}
	if err := m.client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, m.client.Close())
	}
	return m, nil
}

func (m *meter) close() { _ = m.client.Close() }

// commands is how many there were since Redis began, without the bench's own.
func (m *meter) commands(ctx context.Context) (int64, error) {
	info, err := m.client.Info(ctx, "stats").Result()
	if err != nil {
		return 0, err
	}
	total, err := infoNumber(info, "total_commands_processed")
	if err != nil {
		return 0, err
	}
	total -= m.aside
	m.aside++ // this INFO, which counts itself from the next one on
	return total, nil
}

// exclude does something on the same Redis that is not to be counted. What the
// workers ask for in the meantime is not counted either, so it should be short.
func (m *meter) exclude(ctx context.Context, do func() error) error {
	before, err := m.commands(ctx)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := m.commands(ctx)
	m.aside += after - before
	return err
}

// ourKeys are all of Rampmeter's.
const ourKeys = "rm:*"

// bytes is the memory of Rampmeter's keys.
func (m *meter) bytes(ctx context.Context) (sum int64, err error) {
	for cursor := uint64(0); ; {
		var keys []string
		if keys, cursor, err = m.client.Scan(ctx, cursor, ourKeys, 10_000).Result(); err != nil {
			return 0, err
		}
		pipe := m.client.Pipeline()
		for _, key := range keys {
			pipe.MemoryUsage(ctx, key, 1000) // of so many members, the average counts for all
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

// infoNumber finds a number in what INFO answers.
func infoNumber(info, name string) (int64, error) {
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+":"); found {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("INFO: there is no %s", name)
}
