package backlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// enqueue fills the queue before the workers go. Tasks are numbered in that order.
func (t *turn) enqueue(ctx context.Context) error {
	if t.contender.kind == bullMQ {
		return t.bullMQ.enqueue(ctx, t.redis, t.scenario)
	}
	client := asynq.NewClient(connection(t.redis))
	defer client.Close()
	number := 0
	for _, lane := range t.scenario.lanes {
		attributes := map[string]string{tenantAttribute: lane.name}
		for range lane.tasks {
			if err := ctx.Err(); err != nil {
				return err
			}
			task := asynq.NewTaskWithHeaders(taskType, []byte(strconv.Itoa(number)), attributes, t.scenario.retries(number)...)
			if _, err := client.EnqueueContext(ctx, task); err != nil {
				return err
			}
			number++
		}
	}
	if t.scenario.spent {
		return t.spend(ctx)
	}
	return nil
}

// retries are a task's options.
func (s *scenario) retries(number int) []asynq.Option {
	if !s.spent {
		return nil
	}
	return []asynq.Option{asynq.MaxRetry(number % 2)}
}

// spend lets every task that has a retry fail once, in truth, and puts them back
// into the queue. Those without one stay where they are: they are put off to a
// queue of their own while the others fail.
func (t *turn) spend(ctx context.Context) error {
	inspector := asynq.NewInspector(connection(t.redis))
	defer inspector.Close()
	tasks, err := inspector.ListPendingTasks("default", asynq.PageSize(t.seen.tasks))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if task.MaxRetry == 0 {
			if err := inspector.ArchiveTask("default", task.ID); err != nil {
				return err
			}
		}
	}
	if err := failOnce(ctx, connection(t.redis), inspector); err != nil {
		return err
	}
	if _, err := inspector.RunAllArchivedTasks("default"); err != nil {
		return err
	}
	_, err = inspector.RunAllRetryTasks("default")
	return err
}

// failOnce runs every pending task, which fails, until none is left.
func failOnce(ctx context.Context, connection asynq.RedisConnOpt, inspector *asynq.Inspector) error {
	server := asynq.NewServer(connection, asynq.Config{
		Concurrency: 20, LogLevel: asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	failure := errors.New("the failure that spends a retry")
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return failure })); err != nil {
		return err
	}
	defer server.Shutdown()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			return err
		}
		if info.Pending+info.Active == 0 {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("spending retries: %w", ctx.Err())
		}
	}
}
