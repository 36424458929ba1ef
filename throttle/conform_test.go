package throttle_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// conforming makes a limit of each kind, and the model that is its definition.
var conforming = map[string]func(count int64, period time.Duration, burst int64) (policy.Limit, throttletest.Model){
	"token bucket": func(count int64, period time.Duration, burst int64) (policy.Limit, throttletest.Model) {
		return bucket("l", count, period, burst), throttletest.TokenBucketModel(count, period, burst)
	},
	"interval bucket": func(count int64, period time.Duration, burst int64) (policy.Limit, throttletest.Model) {
		limit := bucket("l", count, period, burst)
		limit.Refill = policy.RefillInterval
		return limit, throttletest.IntervalBucketModel(count, period, burst)
	},
	"fixed window by clock": func(count int64, period time.Duration, _ int64) (policy.Limit, throttletest.Model) {
		return window("l", count, period, policy.AnchorClock), throttletest.FixedWindowModel(count, period)
	},
	"fixed window by first": func(count int64, period time.Duration, _ int64) (policy.Limit, throttletest.Model) {
		return window("l", count, period, policy.AnchorFirst), throttletest.OpenedWindowModel(count, period)
	},
	"sliding log": func(count int64, period time.Duration, _ int64) (policy.Limit, throttletest.Model) {
		limit := policy.Limit{Name: "l", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: count, Period: period}}
		return limit, throttletest.SlidingLogModel(count, period)
	},
	"sliding window": func(count int64, period time.Duration, burst int64) (policy.Limit, throttletest.Model) {
		precision := max(time.Microsecond, (period / time.Duration(burst)).Truncate(time.Microsecond))
		return sliding("l", count, precision*time.Duration(burst), precision),
			throttletest.SlidingWindowModel(count, precision*time.Duration(burst), precision)
	},
	"concurrency": func(count int64, period time.Duration, _ int64) (policy.Limit, throttletest.Model) {
		lease := time.Second + period
		return policy.Limit{Name: "l", Algorithm: policy.Concurrency, Slots: count, Lease: lease},
			throttletest.ConcurrencyModel(count, lease)
	},
}

// Laws 1, 2, 3 and 12 by the suite that judges any limiter.
func TestConforms(t *testing.T) {
	t.Parallel()
	for name, make := range conforming {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStory(t, 12, 1, func(t *testing.T, start makeLimiter, seed uint64) {
				random := rand.New(rand.NewPCG(seed, 11))
				limit, model := make(1+random.Int64N(9),
					time.Duration(1+random.Int64N(3_000_000))*time.Microsecond, 1+random.Int64N(9))
				limit.Per, limit.Cost = "key", "cost"
				limits := []policy.Limit{limit}
				if seed%2 == 1 { // beside another, no shortcut through the script is taken
					limits = append(limits, sliding("wide", 1_000_000, time.Minute, time.Second))
				}
				b := start(limits...)
				options := throttletest.ConformOptions{Seed: seed, Stories: 4, Begin: noon}
				if b.byKey {
					options.Cannot = map[throttletest.Promise]string{
						throttletest.KeptWhileItMatters: "nothing expires by the test's clock",
					}
				}
				report := throttletest.Conform(t, b.asLimiter(), model, options)
				for _, f := range report {
					if _, known := options.Cannot[f.Promise]; !known {
						assert.NotEqual(t, throttletest.NotJudged, f.Verdict, "seed %d: %s: %s", seed, f.Promise, f.Detail)
					}
				}
			})
		})
	}
}

// asLimiter is the limiter as the suite asks it, with key and cost as attributes.
func (b *testLimiter) asLimiter() throttletest.Limiter {
	tasks := 0
	return func(ctx context.Context, now time.Time, key string, cost int64) (throttletest.Answer, error) {
		b.set(now)
		ask := request(0, "key", key, "cost", strconv.FormatInt(cost, 10))
		tasks++
		ask.TaskID = strconv.Itoa(tasks) // a task has one lease
		r, err := b.limiter.Reserve(ctx, ask)
		if err != nil {
			return throttletest.Answer{}, err
		}
		answer := throttletest.Answer{Started: r.Outcome == throttle.Granted, Never: r.Outcome == throttle.Never}
		if r.Outcome == throttle.Denied {
			answer.RetryAt = r.At
		}
		answer.Release = func(ctx context.Context, now time.Time) error {
			b.set(now)
			return r.Release(ctx)
		}
		return answer, nil
	}
}
