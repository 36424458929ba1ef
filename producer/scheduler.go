package producer

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
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
	log      *zap.Logger
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
	producer := FromClient(asynq.NewClientFromRedisClient(rdb))
	return &Scheduler{rdb: rdb, producer: producer, schedule: schedule, log: log}, nil
}

// EnqueueBy makes the Scheduler enqueue by a Producer of yours, such as one that parks at
// once, on the same Redis. Call it before Run; the Producer stays yours to close.
func (s *Scheduler) EnqueueBy(p *Producer) { s.producer = p }

// Run enqueues until ctx ends, and returns nil then, once the ticks under way are
// done.
func (s *Scheduler) Run(ctx context.Context) error {
	cron, err := gocron.NewScheduler(gocron.WithLocation(time.UTC), gocron.WithStopTimeout(3*tickCall))
	if err != nil {
		return fmt.Errorf("producer: %w", err)
	}
	holder := rand.Text()
	for i := range s.schedule.Entries {
		if err := s.add(cron, &s.schedule.Entries[i], holder); err != nil {
			_ = cron.Shutdown() // nothing runs yet
			return fmt.Errorf("producer: schedule %q: %w", s.schedule.Entries[i].Name, err)
		}
	}
	cron.Start()
	s.log.Info("scheduler started", zap.Int("entries", len(s.schedule.Entries)))
	<-ctx.Done()
	if err := cron.Shutdown(); err != nil {
		return fmt.Errorf("producer: ending the scheduler: %w", err)
	}
	s.log.Info("scheduler stopped")
	return nil
}

func (s *Scheduler) add(cron gocron.Scheduler, entry *ScheduleEntry, holder string) error {
	location, err := entry.location()
	if err != nil {
		return err
	}
	schedule, err := newTicks(entry.Cron, location)
	if err != nil {
		return err
	}
	lock := &tickLock{rdb: s.rdb, name: entry.Name, holder: holder, schedule: schedule, log: s.log}
	_, err = cron.NewJob(
		gocron.CronJob(entry.Cron, true), // schedule says what of it counts
		gocron.NewTask(func(ctx context.Context) { s.enqueue(ctx, entry, lock.lockedTick()) }),
		gocron.WithName(entry.Name),
		gocron.WithCronImplementation(schedule),
		gocron.WithDistributedJobLocker(lock),
	)
	return err
}

// enqueue finishes what the lock has begun, even if the scheduler stops.
func (s *Scheduler) enqueue(ctx context.Context, entry *ScheduleEntry, tick time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickCall)
	defer cancel()
	log := s.log.With(zap.String("schedule", entry.Name), zap.Time("tick", tick))
	task := entry.Entry
	// Should the lock be gone (a flushed Redis), the ID still keeps a task that
	// waits or is retained from coming twice.
	task.ID = "schedule:" + entry.Name + ":" + tickName(tick)
	info, err := s.producer.Enqueue(ctx, task.Task())
	switch {
	case err == nil:
		log.Info("enqueued", zap.String("queue", info.Queue), zap.String("id", info.ID))
	case AlreadyThere(err):
		log.Info("already there", zap.String("id", task.ID), zap.Error(err))
	default:
		log.Error("tick lost, the next one is not affected", zap.Error(err))
	}
}
