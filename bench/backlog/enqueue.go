package backlog

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// enqueue puts lanes into the queue. Tasks are numbered in that order, from first on.
func (t *turn) enqueue(ctx context.Context, lanes []lane, first int) error {
	if tasksOf(lanes) == 0 {
		return nil
	}
	if t.contender.kind == bullMQ {
		return t.bullMQ.enqueue(ctx, t.Redis, lanes, first)
	}
	connection := redis.NewClient(t.Redis)
	defer connection.Close()
	if t.contender.atOnce {
		return t.enqueueBatch(ctx, connection, lanes, first)
	}
	client := asynq.NewClientFromRedisClient(connection)
	var options []asynq.Option
	if t.scenario.lastAttempt {
		options = []asynq.Option{asynq.MaxRetry(0)}
	}
	number := first
	for _, lane := range lanes {
		attributes := map[string]string{tenantAttribute: lane.Name}
		for range lane.Tasks {
			task := asynq.NewTaskWithHeaders(taskType, []byte(strconv.Itoa(number)), attributes, options...)
			if _, err := client.EnqueueContext(ctx, task); err != nil {
				return err
			}
			number++
		}
	}
	return nil
}

// enqueueBatch does the same by Rampmeter's producer, as a batch.
func (t *turn) enqueueBatch(ctx context.Context, client *redis.Client, lanes []lane, first int) error {
	policies, err := policy.Parse("policies.yaml", []byte(t.contender.policiesFile(t.scenario.limit)))
	if err != nil {
		return err
	}
	limiter, err := throttle.New(client, policies)
	if err != nil {
		return err
	}
	p, err := producer.FromConfig(producer.Config{Limiter: limiter})
	if err != nil {
		return err
	}
	defer p.Close()
	var lines strings.Builder
	for _, lane := range lanes {
		for range lane.Tasks {
			fmt.Fprintf(&lines, `{"type":%q,"payload":%d,"attributes":{%q:%q}}`+"\n", taskType, first, tenantAttribute, lane.Name)
			first++
		}
	}
	_, err = p.Batch(ctx, strings.NewReader(lines.String()), producer.BatchConfig{})
	return err
}

// portions are what is enqueued before the workers go, and what is while they work.
func (t *turn) portions() (before, during []lane) {
	if !t.options.during {
		return t.scenario.lanes, nil
	}
	for _, l := range t.scenario.lanes {
		half := l.Tasks / 2
		before = append(before, lane{l.Name, l.Tasks - half})
		during = append(during, lane{l.Name, half})
	}
	return before, during
}

// enqueueBefore measures what enqueueing costs Redis.
func (t *turn) enqueueBefore(ctx context.Context, lanes []lane) error {
	before, err := t.Meter.Spent(ctx)
	if err != nil {
		return err
	}
	if err := t.enqueue(ctx, lanes, 0); err != nil {
		return fmt.Errorf("enqueueing: %w", err)
	}
	after, err := t.Meter.Spent(ctx)
	t.seen.perEnqueue = float64(after.Sub(before).Commands) / float64(tasksOf(lanes))
	return err
}

// enqueueDuring enqueues the rest in the background, until the returned function is
// called. The outcome will be in the channel.
func (t *turn) enqueueDuring(ctx context.Context, lanes []lane) (<-chan error, func()) {
	ctx, cancel := context.WithCancel(ctx)
	outcome := make(chan error, 1)
	var background sync.WaitGroup
	background.Go(func() { outcome <- t.enqueue(ctx, lanes, t.seen.tasks-tasksOf(lanes)) })
	return outcome, func() { cancel(); background.Wait() }
}

// discount takes off the count what enqueueing during the turn has cost.
func (t *turn) discount(lanes []lane) {
	t.Meter.Discount(int64(t.seen.perEnqueue * float64(tasksOf(lanes))))
}
