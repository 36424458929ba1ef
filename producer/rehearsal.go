package producer

import (
	"context"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
)

// rehearsal finds out what enqueueing a task would do. The options that a task was made
// with are asynq's alone, so asynq is asked, over a connection that leads nowhere.
type rehearsal struct {
	redis  *redis.Client
	client *asynq.Client
}

func newRehearsal() *rehearsal {
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"}) // a name would be looked up
	nowhere.AddHook(lockedDoor{})
	return &rehearsal{redis: nowhere, client: asynq.NewClientFromRedisClient(nowhere)}
}

func (r *rehearsal) close() error { return r.redis.Close() }

// enqueue returns the task as asynq would enqueue it, under an ID that it may have made
// up. simple tells that it would be pending at once, is bound to no deadline, and not
// unique: how long that lasts depends on when the task is to run.
func (r *rehearsal) enqueue(task *asynq.Task, options []asynq.Option) (plan *asynq.TaskInfo, simple bool) {
	plan, err := r.client.Enqueue(task, options...)
	if err != nil {
		return nil, false
	}
	return plan, plan.State == asynq.TaskStatePending && plan.Deadline.IsZero()
}

// lockedDoor answers commands in place of a Redis: to a unique task, that it is there
// already; to others, that they are enqueued.
type lockedDoor struct{}

func (lockedDoor) DialHook(next redis.DialHook) redis.DialHook { return next }

func (lockedDoor) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (lockedDoor) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, command redis.Cmder) error {
		switch command := command.(type) {
		case *redis.Cmd: // a script of asynq's
			command.SetVal(asynqfacts.DuplicateReply)
		case *redis.IntCmd:
			command.SetVal(1)
		}
		return nil
	}
}
