package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/worker"
)

// helloTimeout is how long Redis may take to answer at the start.
const helloTimeout = 4 * time.Second

// server is the Redis that the options name, and the policies file that they may name.
type server struct {
	uri      string
	conn     asynq.RedisConnOpt
	address  string
	policies string
}

// flags ties the flags; why is what the policies are for.
func (s *server) flags(fs *flag.FlagSet, why string) {
	fs.StringVar(&s.policies, "config", "", "policies `FILE` of the workers, "+why)
	fs.StringVar(&s.uri, "redis", "redis://127.0.0.1:6379", "`URI` of the Redis with tasks and limits: redis://, rediss://,\nredis-socket:// or redis-sentinel://")
}

// check reads the URI. Its errors never show a password.
func (s *server) check() error {
	conn, err := worker.ParseRedisURI(s.uri)
	if err != nil {
		return fmt.Errorf("-redis: %w", err)
	}
	s.conn = conn
	switch c := conn.(type) {
	case asynq.RedisFailoverClientOpt:
		s.address = fmt.Sprintf("%s (master %q)", strings.Join(c.SentinelAddrs, ","), c.MasterName)
	case asynq.RedisClientOpt:
		s.address = c.Addr
	default:
		return fmt.Errorf("-redis: unsupported kind of connection %T", conn)
	}
	return nil
}

// session is what a command works with. The policies and their limiter are nil when no
// policies file is named.
type session struct {
	rdb     redis.UniversalClient
	config  *policy.Config
	limiter *throttle.Limiter
}

// open reads the policies and connects. The caller closes the session.
func (s *server) open(ctx context.Context) (*session, error) {
	var config *policy.Config
	var err error
	if s.policies != "" {
		if config, err = policy.ReadFile(s.policies); err != nil {
			return nil, err
		}
	}
	rdb, err := s.connect(ctx)
	if err != nil || config == nil {
		return &session{rdb: rdb}, err
	}
	limiter, err := throttle.New(rdb, config)
	if err != nil {
		_ = rdb.Close()
	}
	return &session{rdb, config, limiter}, err
}

func (s *session) close() { _ = s.rdb.Close() }

// producer returns one that parks tasks at once by the policies, if there are any.
func (s *session) producer() (*producer.Producer, error) {
	client := asynq.NewClientFromRedisClient(s.rdb)
	if s.limiter == nil {
		return producer.FromClient(client), nil
	}
	return producer.FromConfig(producer.Config{Limiter: s.limiter, Client: client})
}

// connect returns a client of a Redis that has just answered.
func (s *server) connect(ctx context.Context) (redis.UniversalClient, error) {
	rdb, ok := s.conn.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("unsupported kind of Redis connection %T", s.conn)
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	if err := rdb.Ping(ctx).Err(); err != nil {
		_ = rdb.Close()
		return nil, s.explain(err)
	}
	return rdb, nil
}

// explain says what to do about a Redis that can not be used.
func (s *server) explain(err error) error {
	if _, answered := errors.AsType[redis.Error](err); answered {
		for _, word := range []string{"NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH"} {
			if strings.HasPrefix(err.Error(), word) {
				return fmt.Errorf("the Redis at %s does not let us in: %w\nPut the password into the URI: -redis redis://:password@host:6379", s.address, err)
			}
		}
		return fmt.Errorf("the Redis at %s answers: %w", s.address, err)
	}
	return fmt.Errorf("cannot reach Redis at %s: %w\nStart it, or name another one with -redis URI or RAMPMETER_REDIS", s.address, err)
}
