package throttle

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/lua"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// scriptLimits returns a policy's limits as the scripts have them.
func scriptLimits(p *policy.Policy) []lua.Limit {
	limits := make([]lua.Limit, len(p.Limits))
	attributes := line.Attributes(p)
	for i := range p.Limits {
		limits[i] = scriptLimit(p, &p.Limits[i])
		limits[i].Value = 1 + slices.Index(attributes, p.Limits[i].Per)
	}
	return limits
}

// headOf is what scripts on these of a policy's limits are told first.
func headOf(p *policy.Policy, places []int) []any {
	all, limits := scriptLimits(p), make([]lua.Limit, len(places))
	for n, i := range places {
		limits[n] = all[i]
	}
	return lua.Head(limits...)
}

// scriptLimit returns one of a policy's limits as the scripts have it, whichever values
// count at it.
func scriptLimit(p *policy.Policy, l *policy.Limit) lua.Limit {
	count, period := l.Rate.Count, l.Rate.Period
	option, extra := "-", int64(0)
	switch l.Algorithm {
	case policy.FixedWindow:
		if l.Anchor == policy.AnchorFirst {
			option = string(policy.AnchorFirst)
		}
	case policy.SlidingWindow:
		extra = l.BucketLength().Microseconds()
	case policy.Concurrency:
		count, period = l.Slots, l.LeaseLength()
	case told:
		option = strconv.FormatInt(longestFlight(p).Microseconds(), 10)
		if p.Upstream != nil {
			extra = p.Upstream.Headroom
		}
	case policy.TokenBucket, policy.SlidingLog, policy.Spacing, pace:
	}
	return lua.Limit{
		Algorithm: l.Kind(), Count: count, PeriodUS: period.Microseconds(), Capacity: l.MostCost(),
		Option: option, Extra: extra, Kept: l.Kept(),
	}
}

// latenessOf is how much later than its slot a start may be where the limit counts over
// every interval, so that late starts could come too close together; or else zero.
func latenessOf(l *policy.Limit) time.Duration {
	switch l.Algorithm {
	case policy.TokenBucket, policy.SlidingWindow, policy.Spacing:
		return Lateness
	case policy.SlidingLog:
		// Half of what slots keep from each other: the other half is for the way from
		// here to the call. And as much as a process can keep to.
		return min(Lateness, max(Lateness/2, l.Rate.Period/100)) / 2
	case policy.FixedWindow, policy.Concurrency, told, pace:
	}
	return 0
}

// integers runs a script whose reply is a list of integers, as [redis.Script.Run]
// does, but without a value on the heap for each of them.
func integers(ctx context.Context, client redis.UniversalClient, script *redis.Script, keys []string, args []any) ([]int64, error) {
	line := make([]any, 0, 3+len(keys)+len(args))
	line = append(line, "evalsha", script.Hash(), len(keys))
	for _, key := range keys {
		line = append(line, key)
	}
	cmd := redis.NewIntSliceCmd(ctx, append(line, args...)...)
	err := client.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return script.Run(ctx, client, keys, args...).Int64Slice()
	}
	return cmd.Val(), err
}
