package decisions

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// contender is one way to decide, under the name it has in the tables.
type contender struct {
	name string
	// open prepares it for one limit on each of the keys, through a client of its
	// own. What can be made ready before a call is made ready here.
	open func(client *redis.Client, limit limit, keys []string) (decide, error)
	// limit is its own generous limit, for a contender that can not have the one
	// of all others. Usually zero.
	limit limit
}

// generous is the limit that its decisions are measured with.
func (c *contender) generous() limit {
	if c.limit != (limit{}) {
		return c.limit
	}
	return generous
}

// decide asks for one token of the limit of keys[i]. A denial is errDenied.
type decide func(ctx context.Context, i int) error

// errDenied fails a measurement: it is about requests that are granted.
var errDenied = errors.New("denied")

// limit is the one limit that all contenders enforce.
type limit struct {
	count  int
	period time.Duration
}

// The limits of the measurements.
var (
	// generous is above what any contender can spend in its turns, yet refills more
	// slowly than it is spent, so that there is always a debt to reckon with.
	generous = limit{count: 10_000_000, period: 1000 * time.Second}
	// short is as generous for what must remember each of its few tokens.
	short = limit{count: 10_000, period: 10 * time.Millisecond}
	// slow leaves a key behind for long enough to be looked at.
	slow = limit{count: 1000, period: 24 * time.Hour}
	// narrow is used up in a moment.
	narrow = limit{count: 1000, period: 500 * time.Millisecond}
	// usedUpFor is how long: somewhat longer than its period.
	usedUpFor = narrow.period * 6 / 5
)

// references are the contenders that ratios are against, the first of all.
var references = []string{bareName, redisRateName}

func allContenders() []contender { return append(others(), ours()...) }

// keyNames are n keys of equal length.
func keyNames(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = strconv.Itoa(1_000_000 + i)
	}
	return keys
}
