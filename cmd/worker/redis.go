package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/embedded"
)

// openRedis returns the way to the Redis that the options name, or to one that
// it starts. The caller owes a call of the function that ends it.
func openRedis(o options, log *zap.Logger) (asynq.RedisConnOpt, func(), error) {
	if !o.embedded {
		conn, err := o.redisConn()
		return conn, func() {}, err
	}
	server, err := embedded.Start("", nil)
	if err != nil {
		return nil, nil, err
	}
	log.Info("embedded Redis started, its data ends with this process",
		zap.String("redis", "redis://"+server.Addr()))
	return asynq.RedisClientOpt{Addr: server.Addr()}, server.Close, nil
}

// Time limits of asking Redis whether it is there.
const (
	startProbeTimeout  = 3 * time.Second
	healthProbeTimeout = time.Second
)

// probe asks Redis whether it is there.
type probe struct {
	client  *redis.Client
	address string
}

// newProbe returns a probe with connections of its own, so that it does not wait
// for those of busy tasks. The caller closes it.
func newProbe(conn asynq.RedisConnOpt) (*probe, error) {
	client, ok := conn.MakeRedisClient().(*redis.Client)
	if !ok { // only a cluster has another, and no URI of asynq's leads there
		return nil, fmt.Errorf("unsupported kind of Redis connection %T", conn)
	}
	p := &probe{client: client, address: client.Options().Addr}
	if sentinels, ok := conn.(asynq.RedisFailoverClientOpt); ok {
		p.address = fmt.Sprintf("%s (master %q)", strings.Join(sentinels.SentinelAddrs, ","), sentinels.MasterName)
	}
	return p, nil
}

// ask returns nil when Redis answers within limit.
func (p *probe) ask(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// go-redis asks ctx before it writes, but not while it reads.
	if err := p.client.WithTimeout(limit).Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no answer from Redis at %s: %w", p.address, err)
	}
	return nil
}

func (p *probe) close() { _ = p.client.Close() }
