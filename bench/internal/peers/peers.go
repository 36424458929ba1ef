// Package peers is the rate limiters that Rampmeter is held against, each asked in the same
// way.
package peers

import (
	"context"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"
)

// Limit is so many tokens a period, of which a burst may go at once. Windows have no burst.
type Limit struct {
	Count  int
	Period time.Duration
	Burst  int
}

// Open prepares a limiter for one limit on each key.
type Open func(client *redis.Client, limit Limit) (Ask, error)

// Ask asks for tokens of a key.
type Ask func(ctx context.Context, key string, cost int) (Answer, error)

// Answer is what a limiter says of one request.
type Answer struct {
	Granted bool
	// Never tells that it can never be granted; no peer's silence is taken for that.
	Never bool
	// RetryAfter is in how long a denied request could be granted.
	RetryAfter time.Duration
}

// RedisRate is go-redis's limiter, by GCRA.
func RedisRate(client *redis.Client, limit Limit) (Ask, error) {
	limiter := redis_rate.NewLimiter(client)
	rate := redis_rate.Limit{Rate: limit.Count, Period: limit.Period, Burst: limit.Burst}
	return func(ctx context.Context, key string, cost int) (Answer, error) {
		result, err := limiter.AllowN(ctx, key, rate, cost)
		if err != nil {
			return Answer{}, err
		}
		return Answer{Granted: result.Allowed > 0, RetryAfter: result.RetryAfter}, nil
	}, nil
}

// Throttled is throttled's limiter, by GCRA.
func Throttled(client *redis.Client, limit Limit) (Ask, error) {
	store, err := throttledstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(limit.Count, limit.Period),
		MaxBurst: limit.Burst - 1, // it counts the burst on top of the first
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string, cost int) (Answer, error) {
		denied, result, err := limiter.RateLimitCtx(ctx, key, cost)
		// A denied request that it gives no time is one that never passes.
		return Answer{!denied && err == nil, denied && result.RetryAfter < 0, result.RetryAfter}, err
	}, nil
}

// Ulule is ulule's limiter, by windows that open with their first request. It tells whole
// seconds of this process's clock.
func Ulule(client *redis.Client, limit Limit) (Ask, error) {
	store, err := ululestore.NewStore(client)
	if err != nil {
		return nil, err
	}
	windows := limiter.New(store, limiter.Rate{Period: limit.Period, Limit: int64(limit.Count)})
	return func(ctx context.Context, key string, cost int) (Answer, error) {
		result, err := windows.Increment(ctx, key, int64(cost))
		if err != nil {
			return Answer{}, err
		}
		return Answer{Granted: !result.Reached, RetryAfter: time.Until(time.Unix(result.Reset, 0))}, nil
	}, nil
}
