package decisions

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/peers"
)

// Names of the contenders that ratios are against.
const (
	bareName      = "EVALSHA return 1"
	redisRateName = "redis_rate"
)

func others() []contender {
	return []contender{
		{name: bareName, open: openBare},
		{name: redisRateName, open: asking(peers.RedisRate)},
		{name: "throttled", open: asking(peers.Throttled)},
		{name: "ulule/limiter", open: asking(peers.Ulule)},
	}
}

// openBare decides nothing. It is what any limiter with one script call per
// request has to pay.
func openBare(client *redis.Client, _ limit, _ []string) (decide, error) {
	script := redis.NewScript("return 1")
	return func(ctx context.Context, _ int) error {
		return script.Run(ctx, client, nil).Err()
	}, nil
}

// asking makes a contender of a peer.
func asking(open peers.Open) func(*redis.Client, limit, []string) (decide, error) {
	return func(client *redis.Client, limit limit, keys []string) (decide, error) {
		ask, err := open(client, peers.Limit{Count: limit.count, Period: limit.period, Burst: limit.count})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, i int) error {
			answer, err := ask(ctx, keys[i], 1)
			if err == nil && !answer.Granted {
				err = errDenied
			}
			return err
		}, nil
	}
}
