package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// MaxSkew is how far a scheduler's clock may be from Redis's. A scheduler that is
// further off leaves its ticks to others.
const MaxSkew = 5 * time.Minute

// lockLife keeps a tick taken until the slowest clock that is allowed has passed
// it, even if the fastest took it.
const lockLife = 2*MaxSkew + time.Minute

var (
	errTaken  = errors.New("another scheduler has this tick")
	errSkewed = errors.New("the clock of this machine is too far from Redis's")
)

// take locks a tick at Redis, and by Redis's clock. It is never unlocked: a tick is to be
// taken once, and its lock expires by itself.
func (s *Scheduler) take(ctx context.Context, name string, tick time.Time) error {
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("asking Redis for its time: %w", err)
	}
	if skew := tick.Sub(now); skew.Abs() > MaxSkew {
		return fmt.Errorf("%w: %s", errSkewed, skew.Round(time.Second))
	}
	key := lockKey(name, tick)
	err = s.rdb.SetArgs(ctx, key, s.holder, redis.SetArgs{Mode: "NX", TTL: lockLife}).Err()
	if errors.Is(err, redis.Nil) {
		// It may be our own: the client repeats a call whose answer was lost.
		holder, err := s.rdb.Get(ctx, key).Result()
		if err == nil && holder == s.holder {
			return nil
		}
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("locking the tick: %w", err)
	}
	return nil
}

func lockKey(name string, tick time.Time) string {
	return "rampmeter:schedule:" + name + ":" + tickName(tick)
}

// tickName is the same wherever it is made.
func tickName(tick time.Time) string { return tick.UTC().Format(time.RFC3339) }
