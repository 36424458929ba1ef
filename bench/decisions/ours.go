package decisions

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// ours are Rampmeter's policies, each a limit or more as a policies file has
// them; RATE stands for the limit that all contenders enforce. Policies have names
// of their own, short and of equal length, because they become part of the Redis
// keys. What this version does not know is left out of the run, with the reason. All ask
// as a worker does, but for the one that says otherwise.
func ours() []contender {
	return []contender{
		reserving("p1", "token_bucket", "{name: a, algorithm: token_bucket, rate: RATE, per: key}"),
		reserving(withoutLine, "token_bucket, no line", "{name: a, algorithm: token_bucket, rate: RATE, per: key}"),
		reserving("p2", "token_bucket interval", "{name: a, algorithm: token_bucket, rate: RATE, refill: interval, per: key}"),
		reserving("p3", "fixed_window clock", "{name: a, algorithm: fixed_window, rate: RATE, anchor: clock, per: key}"),
		reserving("p4", "fixed_window first", "{name: a, algorithm: fixed_window, rate: RATE, anchor: first, per: key}"),
		reserving("p5", "sliding_log", "{name: a, algorithm: sliding_log, rate: RATE, per: key}").with(short),
		reserving("p6", "sliding_window", "{name: a, algorithm: sliding_window, rate: RATE, per: key}"),
		slots("p7", "concurrency", "{name: a, algorithm: concurrency, slots: 1000, per: key}"),
		reserving("p8", "three limits",
			"{name: a, algorithm: token_bucket, rate: RATE, per: key}",
			"{name: b, algorithm: fixed_window, rate: RATE, per: key}",
			"{name: c, algorithm: token_bucket, rate: RATE}"),
	}
}

// with gives a contender a generous limit of its own.
func (c contender) with(limit limit) contender {
	c.limit = limit
	return c
}

// reserving is a contender whose decision is a call of Reserve.
func reserving(id, name string, limits ...string) contender {
	return contender{name: name, open: func(client *redis.Client, limit limit, keys []string) (decide, error) {
		reserve, err := openPolicy(client, id, limit, keys, limits)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, i int) error {
			_, err := reserve(ctx, i)
			return err
		}, nil
	}}
}

// slots is a contender whose decision is a call of Reserve and the end of the
// lease: slots that nobody gives back run out.
func slots(id, name string, limits ...string) contender {
	return contender{name: name, open: func(client *redis.Client, limit limit, keys []string) (decide, error) {
		reserve, err := openPolicy(client, id, limit, keys, limits)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, i int) error {
			reservation, err := reserve(ctx, i)
			if err != nil {
				return err
			}
			return reservation.Cancel(ctx)
		}, nil
	}}
}

// withoutLine is the policy whose requests heed no waiting line, unlike a worker's.
const withoutLine = "p9"

type reserve func(ctx context.Context, i int) (*throttle.Reservation, error)

func openPolicy(client *redis.Client, id string, limit limit, keys, limits []string) (reserve, error) {
	config, err := policy.Parse("", []byte(policyFile(id, limit, limits)))
	if err != nil {
		return nil, err
	}
	limiter, err := throttle.New(client, config)
	if err != nil {
		return nil, err
	}
	// A task has its attributes when it comes, so making them is not measured.
	attributes := make([]map[string]string, len(keys))
	for i, key := range keys {
		attributes[i] = map[string]string{"key": key}
	}
	var tasks atomic.Int64
	return func(ctx context.Context, i int) (*throttle.Reservation, error) {
		request := throttle.Request{Policy: id, Attributes: attributes[i]}
		if id != withoutLine {
			request.TaskID = "default/" + strconv.FormatInt(tasks.Add(1), 10)
			// Who is denied does not join the line, in which others would wait for it.
			request.Park, request.MaxDefer = true, -1
		}
		reservation, err := limiter.Reserve(ctx, request)
		if err == nil && reservation.Outcome != throttle.Granted {
			err = errDenied
		}
		return reservation, err
	}, nil
}

func policyFile(id string, limit limit, limits []string) string {
	rate := fmt.Sprintf("%d/%s", limit.count, limit.period)
	var file strings.Builder
	file.WriteString("policies:\n  " + id + ":\n    limits:\n")
	for _, line := range limits {
		file.WriteString("      - " + strings.ReplaceAll(line, "RATE", rate) + "\n")
	}
	return file.String()
}
