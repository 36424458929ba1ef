package producer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// MaxSkew is how far a scheduler's clock may be from Redis's. A scheduler that is
// further off leaves its ticks to others.
const MaxSkew = 5 * time.Minute

// lockLife keeps a tick taken until the slowest clock that is allowed has passed
// it, even if the fastest took it.
const lockLife = 2*MaxSkew + time.Minute

// tickCall bounds one step of a tick at Redis.
const tickCall = 5 * time.Second

var (
	errTaken  = errors.New("another scheduler has this tick")
	errSkewed = errors.New("the clock of this machine is too far from Redis's")
)

// tickLock is gocron's Locker for one entry. It locks the tick and not the entry,
// and never unlocks: a tick is to be taken once, and its lock expires by itself.
//
// gocron does not tell a job which tick it runs for. So Lock, which gocron calls
// in the job's own goroutine right before the job, leaves the tick to be taken.
type tickLock struct {
	rdb      redis.UniversalClient
	name     string
	holder   string // who we are, among all schedulers
	schedule *ticks
	log      *zap.Logger

	mu     sync.Mutex
	locked []time.Time
}

// Lock implements gocron.Locker. Its error tells gocron to leave the tick alone,
// and has been logged where it is more than another scheduler's luck.
func (l *tickLock) Lock(ctx context.Context, _ string) (gocron.Lock, error) {
	tick := l.schedule.current()
	// A stop in the middle would leave a tick locked that nobody enqueues.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickCall)
	defer cancel()
	if err := l.take(ctx, tick); err != nil {
		if !errors.Is(err, errTaken) {
			l.log.Error("tick lost, the next one is not affected",
				zap.String("schedule", l.name), zap.Time("tick", tick), zap.Error(err))
		}
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked = append(l.locked, tick)
	return kept{}, nil
}

// take locks a tick at Redis, and by Redis's clock.
func (l *tickLock) take(ctx context.Context, tick time.Time) error {
	now, err := l.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("asking Redis for its time: %w", err)
	}
	if skew := tick.Sub(now); skew.Abs() > MaxSkew {
		return fmt.Errorf("%w: %s", errSkewed, skew.Round(time.Second))
	}
	key := lockKey(l.name, tick)
	err = l.rdb.SetArgs(ctx, key, l.holder, redis.SetArgs{Mode: "NX", TTL: lockLife}).Err()
	if errors.Is(err, redis.Nil) {
		// It may be our own: the client repeats a call whose answer was lost.
		holder, err := l.rdb.Get(ctx, key).Result()
		if err == nil && holder == l.holder {
			return nil
		}
		return errTaken
	}
	if err != nil {
		return fmt.Errorf("locking the tick: %w", err)
	}
	return nil
}

// lockedTick takes the tick that Lock has left.
func (l *tickLock) lockedTick() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	tick := l.locked[0]
	l.locked = l.locked[1:]
	return tick
}

// kept is a lock that outlives the job.
type kept struct{}

func (kept) Unlock(context.Context) error { return nil }

func lockKey(name string, tick time.Time) string {
	return "rampmeter:schedule:" + name + ":" + tickName(tick)
}

// tickName is the same wherever it is made.
func tickName(tick time.Time) string { return tick.UTC().Format(time.RFC3339) }
