package decisions

import (
	"context"
	"fmt"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"
)

// Names of the contenders that ratios are against.
const (
	bareName      = "EVALSHA return 1"
	redisRateName = "redis_rate"
)

func peers() []contender {
	return []contender{
		{name: bareName, open: openBare},
		{name: redisRateName, open: openRedisRate},
		{name: "throttled", open: openThrottled},
		{name: "ulule/limiter", open: openUlule},
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

func openRedisRate(client *redis.Client, limit limit, keys []string) (decide, error) {
	limiter := redis_rate.NewLimiter(client)
	rate := redis_rate.Limit{Rate: limit.count, Burst: limit.count, Period: limit.period}
	return func(ctx context.Context, i int) error {
		result, err := limiter.Allow(ctx, keys[i], rate)
		if err == nil && result.Allowed == 0 {
			err = errDenied
		}
		return err
	}, nil
}

func openThrottled(client *redis.Client, limit limit, keys []string) (decide, error) {
	store, err := throttledstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(limit.count, limit.period),
		MaxBurst: limit.count - 1, // it counts the burst on top of the first
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, i int) error {
		denied, _, err := limiter.RateLimitCtx(ctx, keys[i], 1)
		if err == nil && denied {
			err = errDenied
		}
		return err
	}, nil
}

func openUlule(client *redis.Client, limit limit, keys []string) (decide, error) {
	if client == nil {
		return nil, nil // it would load its scripts right away
	}
	store, err := ululestore.NewStore(client)
	if err != nil {
		return nil, fmt.Errorf("ulule/limiter: %w", err)
	}
	limiter := ulule.New(store, ulule.Rate{Period: limit.period, Limit: int64(limit.count)})
	return func(ctx context.Context, i int) error {
		result, err := limiter.Get(ctx, keys[i])
		if err == nil && result.Reached {
			err = errDenied
		}
		return err
	}, nil
}
