package producer

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// Producer enqueues tasks. It is safe for concurrent use.
type Producer struct {
	client *asynq.Client
	parker *parker // nil if it enqueues all tasks the plain way
	// owned is the connection to close; nil when it is somebody else's.
	owned redis.UniversalClient
}

// Config is what a Producer is made of that parks at once; see [FromConfig].
type Config struct {
	// Limiter has the policies of the workers, and their Redis. Required.
	Limiter *throttle.Limiter
	// Client enqueues; it stays yours to close. Nil means one on the Limiter's Redis,
	// which is right where tasks and limits live in the same.
	Client *asynq.Client
	// Attributes tells a task's attributes, as that of worker.MiddlewareConfig does.
	// Nil means its headers.
	Attributes func(*asynq.Task) map[string]string
	// Logger hears of tasks that are late because they could not be put into line.
	// Nil means silence.
	Logger *zap.Logger
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

// Open is New for a Producer that parks at once, by the policies in a file, which is
// that of the workers; see [FromConfig].
//
// The error is a [*policy.ConfigError] that names every problem when the file is not
// valid.
func Open(opt asynq.RedisConnOpt, policiesFile string) (*Producer, error) {
	policies, err := policy.ReadFile(policiesFile)
	if err != nil {
		return nil, err
	}
	p, err := New(opt)
	if err != nil {
		return nil, err
	}
	limiter, err := throttle.New(p.owned, policies)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.parker = newParker(Config{Limiter: limiter, Client: p.client})
	return p, nil
}

// FromClient returns a Producer that enqueues through a client you have already
// and that stays yours to close.
func FromClient(client *asynq.Client) *Producer {
	return &Producer{client: client}
}

// FromConfig returns a Producer that parks at once: a task that a worker would have to
// put into its policy's waiting line, because others are there or its slot is far, is
// put there straight away. asynq has it as scheduled meanwhile. Of a batch under a
// policy with lanes, more tasks than the limits have tokens for are parked.
//
// Tasks go the plain way, and a worker decides on them, where the policy has a MaxDefer
// or another overload strategy than to park; and if they are unique, have a deadline,
// belong to a group, or are to run later. So does every task if Redis does not answer.
//
// Parking takes two steps, asynq's and that into line. It is not begun when the caller's
// context has ended; once it is, it goes on when that ends, for a few seconds at most.
func FromConfig(config Config) (*Producer, error) {
	if config.Limiter == nil {
		return nil, errors.New("producer: Config.Limiter is required")
	}
	p := newParker(config)
	return &Producer{client: p.client, parker: p}, nil
}

// Close closes the connection that New or Open made.
func (p *Producer) Close() error {
	var err error
	if p.parker != nil {
		err = p.parker.rehearsal.close()
	}
	if p.owned == nil {
		return err
	}
	return errors.Join(err, p.owned.Close())
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
// [Entry.Task] returned. The options are asynq's, and win over those that the task was
// made with. So are the errors.
func (p *Producer) Enqueue(ctx context.Context, task *asynq.Task, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	info, _, err := p.enqueue(ctx, task, opts, nil)
	return info, err
}

// enqueue enqueues a task by itself, or one of a burst, and tells whether it was parked.
func (p *Producer) enqueue(ctx context.Context, task *asynq.Task, opts []asynq.Option, b *burst) (info *asynq.TaskInfo, parked bool, err error) {
	if p.parker != nil {
		info, parked, err = p.parker.enqueue(ctx, task, opts, b)
	}
	if !parked {
		info, err = p.client.EnqueueContext(ctx, task, opts...)
	}
	if err != nil {
		return nil, false, fmt.Errorf("enqueue %s: %w", task.Type(), err)
	}
	return info, parked, nil
}
