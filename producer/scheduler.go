package producer

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// Scheduler enqueues the tasks of a Schedule when their time comes. Run as many
// as you like on one Redis, for safety: each tick is enqueued once, by one of
// them. Their clocks may differ by up to [MaxSkew] from Redis's.
//
// A tick that no scheduler was there for is not made up for later. A tick at
// which Redis fails is logged and lost; the ones after it are not.
type Scheduler struct {
	rdb      redis.UniversalClient
	producer *Producer
	schedule *Schedule
	ticks    []*ticks // of each entry
	log      *zap.Logger
	holder   string // who it is, among all schedulers
}

// NewScheduler returns a Scheduler for a schedule, which is not to be changed
// afterwards; the error is that of its Validate. The client stays the caller's
// to close. A nil log is a silent one.
func NewScheduler(rdb redis.UniversalClient, schedule *Schedule, log *zap.Logger) (*Scheduler, error) {
	if err := schedule.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = zap.NewNop()
	}
	s := &Scheduler{rdb: rdb, schedule: schedule, log: log, holder: rand.Text()}
	s.EnqueueBy(FromClient(asynq.NewClientFromRedisClient(rdb)))
	for i := range schedule.Entries {
		ticks, err := schedule.Entries[i].ticks()
		if err != nil {
			return nil, err
		}
		s.ticks = append(s.ticks, ticks)
	}
	return s, nil
}

// EnqueueBy makes the Scheduler enqueue by a Producer of yours, such as one that parks at
// once, on the same Redis. Call it before Run; the Producer stays yours to close.
func (s *Scheduler) EnqueueBy(p *Producer) { s.producer = p }

// Run enqueues until ctx ends, and returns nil then, once the ticks under way are
// done.
func (s *Scheduler) Run(ctx context.Context) error {
	var entries sync.WaitGroup
	for i := range s.schedule.Entries {
		entries.Go(func() { s.follow(ctx, &s.schedule.Entries[i], s.ticks[i]) })
	}
	s.log.Info("scheduler started", zap.Int("entries", len(s.schedule.Entries)))
	entries.Wait()
	s.log.Info("scheduler stopped")
	return nil
}

// follow enqueues an entry's task at each of its ticks until ctx ends. A tick that takes
// long at Redis does not hold up the next one; ticks that have passed by meanwhile, as
// while the machine was asleep, are left out.
func (s *Scheduler) follow(ctx context.Context, entry *ScheduleEntry, ticks *ticks) {
	var underway sync.WaitGroup
	defer underway.Wait()
	for tick := ticks.after(time.Now()); !tick.IsZero(); {
		select {
		case <-time.After(time.Until(tick)):
		case <-ctx.Done():
			return
		}
		due := tick
		underway.Go(func() { s.enqueue(ctx, entry, due) })
		if now := time.Now(); now.After(tick) {
			tick = now
		}
		tick = ticks.after(tick)
	}
}

// tickTimeout bounds what a tick has to do at Redis.
const tickTimeout = 10 * time.Second

// enqueue enqueues the task of a tick, unless another scheduler does. It goes on when ctx
// ends: a stop in the middle would leave a tick locked that nobody enqueues.
func (s *Scheduler) enqueue(ctx context.Context, entry *ScheduleEntry, tick time.Time) {
	log := s.log.With(zap.String("schedule", entry.Name), zap.Time("tick", tick))
	task := entry.Entry
	// Should the lock be gone (a flushed Redis), the ID still keeps a task that
	// waits or is retained from coming twice.
	task.ID = "schedule:" + entry.Name + ":" + tickName(tick)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickTimeout)
	defer cancel()
	var info *asynq.TaskInfo
	err := s.take(ctx, entry.Name, tick)
	if err == nil {
		info, err = s.producer.Enqueue(ctx, task.Task())
	}
	switch {
	case err == nil:
		log.Info("enqueued", zap.String("queue", info.Queue), zap.String("id", info.ID))
	case errors.Is(err, errTaken):
	case AlreadyThere(err):
		log.Info("already there", zap.String("id", task.ID), zap.Error(err))
	default:
		log.Error("tick lost, the next one is not affected", zap.Error(err))
	}
}
