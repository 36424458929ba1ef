package decisions

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
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
	client := b.client()
	defer client.Close()
	m.Name = c.name
	keys := keyNames(idleKeys)

	fresh := func(limit limit) (decide, error) {
		decide, err := c.open(client, limit, keys)
		if err == nil {
			err = b.Meter.Client.FlushDB(ctx).Err()
		}
		return decide, err
	}

	idle, err := fresh(slow)
	for i := 0; i < idleKeys && err == nil; i++ {
		err = idle(ctx, i)
	}
	if err != nil {
		return m, err
	}
	bytes, err := b.Meter.Memory(ctx, "*", 0)
	if err != nil {
		return m, err
	}
	m.Idle = float64(bytes) / idleKeys

	full, err := fresh(narrow)
	if err != nil {
		return m, err
	}
	if err := useUp(ctx, full, usedUpFor); err != nil {
		return m, err
	}
	bytes, err = b.Meter.Memory(ctx, "*", 0)
	m.Full = float64(bytes)
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
