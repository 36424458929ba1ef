package worker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

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

// ParseRedisURI reads the URI of a Redis as [asynq.ParseRedisURI] does, and besides
// the user's name, which that leaves out, and a missing port. Its errors say how to
// write it, and never show a password.
func ParseRedisURI(uri string) (asynq.RedisConnOpt, error) {
	const usage = "write it like redis://:password@host:6379/0"
	conn, err := asynq.ParseRedisURI(uri)
	if err != nil {
		if quoted, ok := errors.AsType[*url.Error](err); ok {
			err = quoted.Err
		}
		return nil, fmt.Errorf("%w; %s", err, usage)
	}
	single, ok := conn.(asynq.RedisClientOpt)
	if !ok || single.Network == "unix" {
		return conn, nil
	}
	u, err := url.Parse(uri)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("the URI names no host; " + usage)
	}
	single.Username = u.User.Username()
	if u.Port() == "" {
		single.Addr = strings.TrimSuffix(u.Host, ":") + ":6379"
	}
	return single, nil
}
