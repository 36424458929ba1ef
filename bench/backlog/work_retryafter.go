package backlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/peers"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// rateLimitedError is the usual pattern, as asynq's wiki has it: the handler asks a
// limiter, and an error that is no failure brings the task back when it says.
type rateLimitedError struct{ retryIn time.Duration }

func (e *rateLimitedError) Error() string { return fmt.Sprintf("rate limited, retry in %s", e.retryIn) }

// gate is what a handler asks before its call.
type gate struct {
	// ask takes a token of a key, or tells in how long there could be one.
	ask func(ctx context.Context, key string) (retryIn time.Duration, err error)
	// leave gives it back after the call; nil where nothing is given back.
	leave func(ctx context.Context, key string) error
}

// openRetryAfter differs from the wiki in that all processes share the limiter, and
// that a task stays away for as long as the limiter says, and for a random time more:
// without that all of them would come back at once.
func (j *job) openRetryAfter(connection asynq.RedisConnOpt, config asynq.Config, tell *teller, call asynq.Handler) (*workServer, error) {
	client, ok := connection.MakeRedisClient().(*redis.Client)
	if !ok {
		return nil, fmt.Errorf("no single Redis: %T", connection)
	}
	gate, err := j.Limit.shared(client)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	config.IsFailure = func(err error) bool {
		limited := (*rateLimitedError)(nil)
		return !errors.As(err, &limited)
	}
	config.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if limited := (*rateLimitedError)(nil); errors.As(err, &limited) {
			return limited.retryIn
		}
		return asynq.DefaultRetryDelayFunc(n, err, task)
	}
	perTenant, spread := j.Limit.PerTenant, max(1, j.Spread)
	server := startPlain(connection, config, tell.counting(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		key := "all"
		if perTenant {
			key = task.Headers()[tenantAttribute]
		}
		retryIn, err := gate.ask(ctx, key)
		if err != nil {
			return err
		}
		if retryIn > 0 {
			return &rateLimitedError{retryIn + rand.N(spread)}
		}
		err = call.ProcessTask(ctx, task)
		if gate.leave != nil {
			err = errors.Join(err, gate.leave(ctx, key))
		}
		return err
	})))
	stop := server.stop
	server.stop = func() {
		stop()
		_ = client.Close()
	}
	return server, nil
}

// shared is a well-known limiter on Redis for this limit: redis_rate, or ulule's
// where the limit counts by windows, or a semaphore like asynq's own.
func (l limit) shared(client *redis.Client) (gate, error) {
	open := peers.RedisRate
	switch l.Algorithm {
	case policy.Concurrency:
		return l.semaphore(client), nil
	case policy.FixedWindow:
		open = peers.Ulule
	}
	// Without a burst, evenly: one of a count would allow two counts in a period.
	ask, err := open(client, peers.Limit{Count: l.Count, Period: l.Period, Burst: max(1, l.Burst)})
	return gate{ask: func(ctx context.Context, key string) (time.Duration, error) {
		answer, err := ask(ctx, key, 1)
		if err != nil || answer.Granted {
			return 0, err
		}
		return max(time.Millisecond, answer.RetryAfter), nil
	}}, err
}

// enter is how the semaphore of asynq's x/rate admits a task; that itself is made for
// an older asynq. KEYS[1] is its set; ARGV are how many fit, now and the end of the
// task's deadline as unix times, and the task.
var enter = redis.NewScript(`
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2] - 1)
return redis.call('ZCARD', KEYS[1]) < ARGV[1] + 0 and redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])`)

// semaphore puts a task that finds no slot off for as long as a call takes.
func (l limit) semaphore(client *redis.Client) gate {
	set := func(key string) string { return "semaphore:" + key }
	return gate{
		ask: func(ctx context.Context, key string) (time.Duration, error) {
			deadline, _ := ctx.Deadline() // asynq sets one
			id, _ := asynq.GetTaskID(ctx)
			err := enter.Run(ctx, client, []string{set(key)}, l.Count, time.Now().Unix(), deadline.Unix(), id).Err()
			if errors.Is(err, redis.Nil) {
				return l.Period, nil
			}
			return 0, err
		},
		leave: func(ctx context.Context, key string) error {
			id, _ := asynq.GetTaskID(ctx)
			return client.ZRem(ctx, set(key), id).Err()
		},
	}
}
