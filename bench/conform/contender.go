package conform

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/bench/internal/peers"
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
	open func(client *redis.Client) (peers.Ask, error)
}

func contenders() []contender {
	bucket := throttletest.TokenBucketModel(count, period, count)
	opened := throttletest.OpenedWindowModel(count, period)
	return []contender{
		{name: "token_bucket", model: bucket, open: ours("token_bucket")},
		{name: "fixed_window", model: opened, open: ours("fixed_window, anchor: first")},
		{name: "redis_rate", model: bucket, open: theirs(peers.RedisRate)},
		{name: "throttled", model: bucket, open: theirs(peers.Throttled)},
		{name: "ulule/limiter", model: opened, open: theirs(peers.Ulule), cannot: map[throttletest.Promise]string{
			throttletest.ImpossibleIsNever:  "it answers allowed or not",
			throttletest.PatienceIsRewarded: "it tells whole seconds of its process's clock",
		}},
	}
}

// ours is Rampmeter with one limit of that algorithm.
func ours(algorithm string) func(*redis.Client) (peers.Ask, error) {
	return func(client *redis.Client) (peers.Ask, error) {
		config, err := policy.Parse("", fmt.Appendf(nil,
			"policies: {api: {limits: [{name: l, algorithm: %s, rate: %d/%s, per: key, cost: cost}]}}", algorithm, count, period))
		if err != nil {
			return nil, err
		}
		limiter, err := throttle.New(client, config)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, key string, cost int) (peers.Answer, error) {
			r, err := limiter.Reserve(ctx, throttle.Request{Policy: "api", Attributes: map[string]string{
				"key": key, "cost": strconv.Itoa(cost),
			}})
			if err != nil {
				return peers.Answer{}, err
			}
			return peers.Answer{
				Granted: r.Outcome == throttle.Granted, Never: r.Outcome == throttle.Never, RetryAfter: r.RetryAfter(),
			}, nil
		}, nil
	}
}

// theirs is a peer.
func theirs(open peers.Open) func(*redis.Client) (peers.Ask, error) {
	return func(client *redis.Client) (peers.Ask, error) {
		return open(client, peers.Limit{Count: count, Period: period, Burst: count})
	}
}
