package worker

import (
	"context"
	"fmt"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/throttle"
)

// Whereabouts is where a task is, and whether a policy's waiting line is a part of it.
type Whereabouts struct {
	// Task is what asynq knows of it.
	Task *asynq.TaskInfo
	// Policy governs it; empty if none does.
	Policy string
	// Line is where it stands in its policy's waiting line, or nil.
	Line *throttle.Standing
}

// Where tells where a task is, by its queue and ID. Its attributes are its headers; a
// program whose [MiddlewareConfig].Attributes makes others asks the Limiter itself. It
// changes nothing. The error wraps asynq's ErrTaskNotFound or ErrQueueNotFound, or
// says why Redis could not tell.
func Where(ctx context.Context, limiter *throttle.Limiter, inspector *asynq.Inspector, queue, id string) (*Whereabouts, error) {
	info, err := inspector.GetTaskInfo(queue, id)
	if err != nil {
		return nil, fmt.Errorf("worker: task %q of queue %q: %w", id, queue, err)
	}
	w := &Whereabouts{Task: info}
	policy := limiter.Config().PolicyFor(info.Type)
	if policy == nil {
		return w, nil
	}
	w.Policy = policy.Name
	w.Line, err = limiter.Where(ctx, throttle.Request{
		Policy: policy.Name, TaskID: throttle.TaskName(queue, id), Attributes: info.Headers,
	})
	if w.Line != nil && info.State == asynq.TaskStateScheduled && info.Headers[HeaderSpare] == "" {
		w.Line.Asked = 0 // its producer put it into line
	}
	return w, err
}
