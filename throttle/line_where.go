package throttle

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Standing is what is known of a task in a waiting line.
type Standing struct {
	Place
	// HeldBy is the limit that would hold the task back if it were alone, or
	// [HeldByFreeze]; empty if its tokens are there.
	HeldBy string
	// Woken tells that its turn has come: it is on its way to a worker.
	Woken bool
	// Asked is how often it has asked for its start.
	Asked int64
}

// urgentLead is how much before it did an urgent task is taken to have come.
const urgentLead = 24 * time.Hour

// Where tells where a task stands in the waiting line of its policy, or nil if it is
// not in line. The request names it as the one did that joined: by policy, TaskID and
// Attributes. It changes nothing. Its errors are Reserve's.
func (l *Limiter) Where(ctx context.Context, request Request) (*Standing, error) {
	calls, claim, err := l.claim(request)
	if err != nil {
		return nil, err
	}
	now, err := l.Peek(ctx, request)
	if err != nil {
		return nil, err
	}
	standing, rows, count, err := calls.where(ctx, claim)
	if standing == nil || err != nil {
		return nil, wrapCall("where", request.Policy, err)
	}
	standing.Lane, standing.HeldBy = calls.line.lane(request.Attributes), now.HeldBy
	if claim.urgent {
		standing.Since = standing.Since.Add(urgentLead) // it is taken to have come that much before
	}
	standing.Expected = now.At
	if !standing.Woken {
		shared, slowest := calls.line.times(claim)
		ahead := max(0, min(count, standing.Position*max(1, rows))-1)
		standing.Expected = now.At.Add(max(time.Duration(ahead)*shared, time.Duration(standing.Position-1)*slowest))
	}
	return standing, nil
}

// where reads a task's place, and how many rows and tasks there are.
func (c *policyCalls) where(ctx context.Context, claim *claim) (s *Standing, rows, count int64, err error) {
	key, name, row := c.line.key, c.line.name(claim), c.line.row(claim)
	pipe := c.redis.Pipeline()
	woken := pipe.ZScore(ctx, key+"/woken", name)
	late := pipe.ZScore(ctx, key+"/late", name)
	place := pipe.ZScore(ctx, key+"/row:"+row, claim.member())
	rank := pipe.ZRank(ctx, key+"/row:"+row, claim.member())
	inLine := pipe.HLen(ctx, key+"/cursors")
	line := pipe.Get(ctx, key)
	again := pipe.HGet(ctx, key+"/asked", claim.member())
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, 0, 0, err
	}
	if errors.Is(place.Err(), redis.Nil) {
		return nil, 0, 0, nil // it is not in line
	}
	s = &Standing{Asked: 1, Woken: woken.Err() == nil || late.Err() == nil}
	s.Position, s.Since = rank.Val()+1, time.UnixMicro(int64(place.Val()))
	if s.Woken {
		s.Position = 1
	}
	if n, err := again.Int64(); err == nil {
		s.Asked += n
	}
	if fields := strings.Split(line.Val(), ","); len(fields) > 1 {
		count, _ = strconv.ParseInt(fields[1], 10, 64)
	}
	return s, inLine.Val(), count, nil
}

// times are how long the limits take to make up for a claim's costs: the slowest of
// those that all rows share, and the slowest of all. The scripts reckon alike.
func (l *lineOf) times(c *claim) (shared, slowest time.Duration) {
	for i := range l.policy.Limits {
		script := scriptLimit(l.policy, &l.policy.Limits[i])
		took := time.Duration(float64(c.costs[i]) * float64(script.PeriodUS) / float64(script.Count) * float64(time.Microsecond))
		slowest = max(slowest, took)
		if l.policy.Limits[i].Per == "" {
			shared = max(shared, took)
		}
	}
	return shared, slowest
}
