package worker

import (
	"context"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/throttle"
)

// taskName names the task that a handler runs for. It is empty outside an asynq server.
func taskName(ctx context.Context) string {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return ""
	}
	queue, _ := asynq.GetQueueName(ctx)
	return throttle.TaskName(queue, id)
}
