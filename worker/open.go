package worker

import (
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Open returns a Middleware for the policies in a file, with a connection of its
// own to the Redis of the tasks; Close closes it. It is the short way for a
// program that needs none of the other fields of [MiddlewareConfig]. It logs to
// [zap.L], which is silent where the program has not put another logger.
//
// What the file says later is in force within a second: see PoliciesFile there.
//
// The error is a [*policy.ConfigError] that names every problem when the file is
// not valid. Open does not connect yet.
func Open(connection asynq.RedisConnOpt, policiesFile string) (m *Middleware, err error) {
	policies, err := policy.ReadFile(policiesFile)
	if err != nil {
		return nil, err
	}
	client, err := connect(connection)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = client.Close()
		}
	}()
	limiter, err := throttle.New(client, policies)
	if err != nil {
		return nil, err
	}
	m, err = NewMiddleware(MiddlewareConfig{Limiter: limiter, PoliciesFile: policiesFile, Logger: zap.L()})
	if err == nil {
		m.owned = client
	}
	return m, err
}

// Must returns m, or panics when err is not nil: for a program that can not start
// without its policies.
func Must(m *Middleware, err error) *Middleware {
	if err != nil {
		panic(err)
	}
	return m
}

func connect(connection asynq.RedisConnOpt) (redis.UniversalClient, error) {
	client, ok := connection.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("worker: unsupported asynq.RedisConnOpt %T", connection)
	}
	return client, nil
}
