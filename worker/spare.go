package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle"
)

// HeaderSpare marks a task that has a spare retry, with what asynq knew of its retries
// before, as in "2/2": of two retries, two were spent.
//
// asynq archives a task that returns an error from its last attempt, whatever the
// error says. So one that has to wait for longer than it can stay with a worker is
// replaced by itself: the same task, with the same ID, and one retry more that it is
// not to use. Should it fail, it is archived, as it would have been.
const HeaderSpare = "rampmeter-spare-retry"

// spareKey holds the tasks that are between their old and their new selves, by name.
const spareKey = "rm:{spares}"

// spares replaces tasks by themselves with a spare retry.
type spares struct {
	redis     redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
	log       *zap.Logger

	ctx     context.Context // ends with close
	stop    context.CancelFunc
	pending sync.WaitGroup
}

func newSpares(client redis.UniversalClient, inspector *asynq.Inspector, log *zap.Logger) *spares {
	s := &spares{redis: client, client: asynq.NewClientFromRedisClient(client), inspector: inspector, log: log}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// close waits for replacements that are under way. Those that do not end in time are
// for another process to finish.
func (s *spares) close() {
	timer := time.AfterFunc(spareTimeout, s.stop)
	defer timer.Stop()
	s.pending.Wait()
	s.stop()
}

const (
	// spareTimeout is how long a replacement may take.
	spareTimeout = 3 * time.Second
	// spareKept is how long a task that is not replaced yet is remembered.
	spareKept = 7 * 24 * time.Hour
	// spareRound is how often replacements that nobody finished are looked for.
	spareRound = 30 * time.Second
)

// spare is a task between its old and its new self.
type spare struct {
	Taken     time.Time // when it was taken from asynq
	Returns   time.Time // when it comes back by itself
	Queue, ID string
	Type      string
	Payload   []byte
	Headers   map[string]string
	Timeout   time.Duration
	Deadline  time.Time
	Retention time.Duration
}

// grant gives a task on its last attempt a spare retry. It returns the error by which
// its handler makes asynq let go of it: from then on it is ours to bring back, even if
// this process is killed. It returns by itself after that time.
func (s *spares) grant(ctx context.Context, deferred *throttle.ThrottledError, after time.Duration) error {
	id, _ := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	info, err := s.inspector.GetTaskInfo(queue, id)
	if err != nil {
		return fmt.Errorf("looking up a task on its last attempt: %w", err)
	}
	now := time.Now()
	record := spare{
		Taken: now, Returns: now.Add(after), Queue: queue, ID: id,
		Type: info.Type, Payload: info.Payload, Headers: map[string]string{
			HeaderSpare: fmt.Sprintf("%d/%d", info.Retried, info.MaxRetry),
		},
		Timeout: info.Timeout, Deadline: info.Deadline, Retention: info.Retention,
	}
	maps.Copy(record.Headers, info.Headers) // which may tell of its retries already
	text, err := json.Marshal(record)
	if err != nil {
		return err
	}
	pipe := s.redis.TxPipeline()
	pipe.HSet(ctx, spareKey, throttle.TaskName(queue, id), text)
	pipe.Expire(ctx, spareKey, spareKept)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("remembering a task on its last attempt: %w", err)
	}
	s.pending.Go(func() { s.bringBack(s.ctx, record) })
	return fmt.Errorf("%w: %w", deferred, asynq.RevokeTask)
}

// bringBack enqueues a task again as soon as asynq has let go of it.
func (s *spares) bringBack(ctx context.Context, record spare) {
	ctx, cancel := context.WithTimeout(ctx, spareTimeout)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := s.enqueue(ctx, record)
		if err == nil {
			return
		}
		if !errors.Is(err, asynq.ErrTaskIDConflict) {
			s.log.Warn("could not bring back a task that waits for its turn; somebody will try again",
				zap.String("task_id", throttle.TaskName(record.Queue, record.ID)), zap.Error(err))
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (s *spares) enqueue(ctx context.Context, record spare) error {
	task := asynq.NewTaskWithHeaders(record.Type, record.Payload, record.Headers)
	options := []asynq.Option{
		asynq.Queue(record.Queue), asynq.TaskID(record.ID), asynq.MaxRetry(1),
		asynq.Timeout(record.Timeout), asynq.Deadline(record.Deadline), asynq.Retention(record.Retention),
		asynq.ProcessAt(record.Returns),
	}
	// Nobody can tell whether it was a unique task, but if it was, it still is.
	unique := asynq.Unique(max(time.Second, time.Until(record.Returns)))
	_, err := s.client.EnqueueContext(ctx, task, append(options, unique)...)
	if errors.Is(err, asynq.ErrDuplicateTask) {
		_, err = s.client.EnqueueContext(ctx, task, options...)
	}
	if err != nil {
		return err
	}
	return s.redis.HDel(ctx, spareKey, throttle.TaskName(record.Queue, record.ID)).Err()
}

// watch brings back, until ctx ends, tasks of processes that did not live to do it: at
// once, for this may be the process that was killed, come back.
func (s *spares) watch(ctx context.Context) {
	repeat(ctx, func() time.Duration {
		s.finishOthers(ctx)
		return spareRound/2 + rand.N(spareRound)
	})
}

func (s *spares) finishOthers(ctx context.Context) {
	const most = 100
	pairs, _, err := s.redis.HScan(ctx, spareKey, 0, "*", most).Result()
	if err != nil {
		return // the next round may do
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		var record spare
		name, text := pairs[i], pairs[i+1]
		if json.Unmarshal([]byte(text), &record) != nil || time.Since(record.Taken) < 2*spareTimeout {
			continue
		}
		info, err := s.inspector.GetTaskInfo(record.Queue, record.ID)
		switch {
		case asynqfacts.IsGone(err):
			s.bringBack(ctx, record)
		case err == nil && info.Headers[HeaderSpare] != "" && info.State != asynq.TaskStateActive:
			_ = s.redis.HDel(ctx, spareKey, name).Err() // it is back; or else the next round
		}
	}
}

// has reports whether a task is between its old and its new self.
func (s *spares) has(ctx context.Context, name string) bool {
	has, err := s.redis.HExists(ctx, spareKey, name).Result()
	return has || err != nil
}

// exhausted makes a failure of a task that has a spare retry its last.
func exhausted(task *asynq.Task, err error) error {
	if err == nil || task.Headers()[HeaderSpare] == "" || isThrottled(err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
}
