package producer

import (
	"context"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/httprequest"
)

// Producer enqueues tasks. It is safe for concurrent use.
type Producer struct {
	client *asynq.Client
	// owned is the connection to close; nil when it is somebody else's.
	owned redis.UniversalClient
}

// New returns a Producer with a connection of its own, which Close closes. It
// does not connect yet: an unreachable Redis is the error of the first call that
// needs it.
func New(opt asynq.RedisConnOpt) (*Producer, error) {
	rdb, ok := opt.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("producer: unsupported asynq.RedisConnOpt %T", opt)
	}
	return &Producer{client: asynq.NewClientFromRedisClient(rdb), owned: rdb}, nil
}

// FromClient returns a Producer that enqueues through a client you have already
// and that stays yours to close.
func FromClient(client *asynq.Client) *Producer {
	return &Producer{client: client}
}

// Close closes the connection that New made.
func (p *Producer) Close() error {
	if p.owned == nil {
		return nil
	}
	return p.owned.Close()
}

// HTTP enqueues one call for a worker's built-in "http:request" task. The
// attributes may be nil; the options are asynq's, with asynq's defaults.
//
// The error wraps [httprequest.ErrInvalid] for a payload that no worker could
// send, and is asynq's otherwise, so errors.Is finds [asynq.ErrTaskIDConflict]
// and [asynq.ErrDuplicateTask].
func (p *Producer) HTTP(ctx context.Context, payload httprequest.Payload, attributes map[string]string, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	data, err := payload.Encode()
	if err != nil {
		return nil, err
	}
	return p.Enqueue(ctx, asynq.NewTaskWithHeaders(httprequest.TaskType, data, attributes, opts...))
}

// Enqueue enqueues a task made with [asynq.NewTaskWithHeaders], or one that
// [Entry.Task] returned. Its errors are asynq's.
func (p *Producer) Enqueue(ctx context.Context, task *asynq.Task) (*asynq.TaskInfo, error) {
	info, err := p.client.EnqueueContext(ctx, task)
	if err != nil {
		return nil, fmt.Errorf("enqueue %s: %w", task.Type(), err)
	}
	return info, nil
}
