package decisions

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// memory is what a contender keeps in Redis for one key of the caller's, in
// bytes; for a policy of several limits that is several keys of Redis.
type memory struct {
	Name string `json:"name"`
	// Idle: after one request, and nothing since.
	Idle float64 `json:"idle"`
	// Full: after traffic that used up the limit for longer than its period.
	Full  float64 `json:"full"`
	Error string  `json:"error,omitempty"`
}

// idleKeys is how many keys the average of memory.Idle is of.
const idleKeys = 100

// weigh measures one contender's memory in an otherwise empty database.
func (b *bench) weigh(ctx context.Context, c contender) (m memory, err error) {
	admin := b.Meter.Client
	client := b.client()
	defer client.Close()
	m.Name = c.name
	keys := keyNames(idleKeys)

	idle, err := c.open(client, slow, keys)
	if err == nil {
		err = admin.FlushDB(ctx).Err()
	}
	for i := 0; i < idleKeys && err == nil; i++ {
		err = idle(ctx, i)
	}
	if err != nil {
		return m, err
	}
	if m.Idle, err = databaseBytes(ctx, admin, idleKeys); err != nil {
		return m, err
	}

	full, err := c.open(client, narrow, keys)
	if err == nil {
		err = admin.FlushDB(ctx).Err()
	}
	if err != nil {
		return m, err
	}
	if err := useUp(ctx, full, usedUpFor); err != nil {
		return m, err
	}
	m.Full, err = databaseBytes(ctx, admin, 1)
	return m, err
}

// useUp asks for tokens of one key, granted or not, for a while.
func useUp(ctx context.Context, decide decide, d time.Duration) error {
	var over atomic.Bool
	timer := time.AfterFunc(d, func() { over.Store(true) })
	defer timer.Stop()
	for asks := true; asks; asks = !over.Load() {
		if err := decide(ctx, 0); err != nil && !errors.Is(err, errDenied) {
			return err
		}
	}
	return nil
}

// databaseBytes is the memory that all keys of the database take, for each of n.
func databaseBytes(ctx context.Context, admin *redis.Client, n int) (float64, error) {
	var sum int64
	keys := admin.Scan(ctx, 0, "", 1000).Iterator()
	for keys.Next(ctx) {
		bytes, err := admin.MemoryUsage(ctx, keys.Val(), 0).Result() // 0: look at all of it
		if errors.Is(err, redis.Nil) {
			continue // it expired just now
		}
		if err != nil {
			return 0, err
		}
		sum += bytes
	}
	return float64(sum) / float64(n), keys.Err()
}
