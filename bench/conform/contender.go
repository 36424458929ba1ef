package conform

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// The limit that all contenders enforce, each by its own definition. A token comes
// every 12 s, which all of them can reckon.
const (
	count  = 5
	period = time.Minute
)

// contender is a limiter that is judged, under the name it has in the table.
type contender struct {
	name  string
	model throttletest.Model
	// cannot has the promises that it can not be judged by.
	cannot map[throttletest.Promise]string
	// open prepares it on a server whose time the suite sets.
	open func(client *redis.Client) (ask, error)
}

// ask asks a limiter by its server's time.
type ask func(ctx context.Context, key string, cost int64) (answer, error)

// answer is an Answer that tells time as limiters do: by how long to wait.
type answer struct {
	started, never bool
	retryAfter     time.Duration
}

func contenders() []contender {
	bucket := throttletest.TokenBucketModel(count, period, count)
	opened := throttletest.OpenedWindowModel(count, period)
	return []contender{
		{name: "token_bucket", model: bucket, open: ours("token_bucket")},
		{name: "fixed_window", model: opened, open: ours("fixed_window, anchor: first")},
		{name: "redis_rate", model: bucket, open: openRedisRate},
		{name: "throttled", model: bucket, open: openThrottled},
		{name: "ulule/limiter", model: opened, open: openUlule, cannot: map[throttletest.Promise]string{
			throttletest.ImpossibleIsNever:  "it answers allowed or not",
			throttletest.PatienceIsRewarded: "it tells whole seconds of its process's clock",
		}},
	}
}

// ours is Rampmeter with one limit of that algorithm.
func ours(algorithm string) func(*redis.Client) (ask, error) {
	return func(client *redis.Client) (ask, error) {
		config, err := policy.Parse("", fmt.Appendf(nil,
			"policies: {api: {limits: [{name: l, algorithm: %s, rate: %d/%s, per: key, cost: cost}]}}", algorithm, count, period))
		if err != nil {
			return nil, err
		}
		limiter, err := throttle.New(client, config)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, key string, cost int64) (answer, error) {
			r, err := limiter.Reserve(ctx, throttle.Request{Policy: "api", Attributes: map[string]string{
				"key": key, "cost": strconv.FormatInt(cost, 10),
			}})
			if err != nil {
				return answer{}, err
			}
			return answer{r.Outcome == throttle.Granted, r.Outcome == throttle.Never, r.RetryAfter()}, nil
		}, nil
	}
}

func openRedisRate(client *redis.Client) (ask, error) {
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: count, Burst: count, Period: period}
	return func(ctx context.Context, key string, cost int64) (answer, error) {
		result, err := limiter.AllowN(ctx, key, limit, int(cost))
		if err != nil {
			return answer{}, err
		}
		return answer{started: result.Allowed > 0, retryAfter: result.RetryAfter}, nil
	}, nil
}

func openThrottled(client *redis.Client) (ask, error) {
	store, err := throttledstore.NewCtx(client, "throttled:")
	if err != nil {
		return nil, err
	}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate:  throttled.PerDuration(count, period),
		MaxBurst: count - 1, // it counts the burst on top of the first
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string, cost int64) (answer, error) {
		denied, result, err := limiter.RateLimitCtx(ctx, key, int(cost))
		// A denied request that it gives no time is one that never passes.
		return answer{!denied, denied && result.RetryAfter < 0, result.RetryAfter}, err
	}, nil
}

func openUlule(client *redis.Client) (ask, error) {
	store, err := ululestore.NewStore(client)
	if err != nil {
		return nil, err
	}
	limiter := ulule.New(store, ulule.Rate{Period: period, Limit: count})
	return func(ctx context.Context, key string, cost int64) (answer, error) {
		result, err := limiter.Increment(ctx, key, cost)
		return answer{started: !result.Reached}, err
	}, nil
}
