package worker

import (
	"context"
	"net/url"
	"strings"

	"github.com/hibiken/asynq"
)

// taskName tells a task from all others: its ID is unique in its queue only, and
// two tasks must not be taken for one that asks again for its own slot. It is empty
// outside an asynq server.
func taskName(ctx context.Context) string {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		return ""
	}
	queue, _ := asynq.GetQueueName(ctx)
	return nameOf(queue, id)
}

// nameOf returns the name of a task; parseName is its inverse.
func nameOf(queue, id string) string { return url.PathEscape(queue) + "/" + id }

func parseName(name string) (queue, id string, ok bool) {
	escaped, id, ok := strings.Cut(name, "/")
	if !ok {
		return "", "", false
	}
	queue, err := url.PathUnescape(escaped)
	return queue, id, err == nil
}
