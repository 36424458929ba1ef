package throttle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// MostRecent is the most starts that [Limiter.Recent] tells.
const MostRecent = 1000

// ErrNoLog is wrapped by the error for a limit that does not remember who started:
// only a [policy.SlidingLog] does.
var ErrNoLog = errors.New("no sliding_log")

// Start is one start that a [policy.SlidingLog] limit remembers.
type Start struct {
	// TaskID is the request's. One of more than 128 bytes is told as
	// "sha256/" and its hash.
	TaskID string
	// At is the slot, by Redis's clock.
	At time.Time
	// Cost is what was taken from the limit, as adjusted since.
	Cost int64
}

// Recent tells who started within the last period of a [policy.SlidingLog] limit, latest
// first: at most `most` starts, and never more than [MostRecent]. Of the request it
// needs the policy and, if the limit has one, the attribute that Per names. Slots
// that were granted ahead are not told before their time.
//
// It changes nothing. The error is a [*policy.AttributeError] when that attribute is
// missing, wraps [ErrUnknownPolicy] or [ErrNoLog], or says why Redis could not tell.
func (l *Limiter) Recent(ctx context.Context, request Request, limit string, most int) ([]Start, error) {
	calls, err := l.calls(request.Policy)
	if err != nil {
		return nil, err
	}
	log, err := logOf(calls.policy, limit)
	if err != nil {
		return nil, err
	}
	value, err := calls.policy.Key(log, request.Attributes)
	if err != nil {
		return nil, err
	}
	key := line.StateKey(request.Policy, limit, value)
	most = max(0, min(most, MostRecent))
	reply, err := calls.scripts.Recent.Run(ctx, l.redis, []string{key}, log.Rate.Period.Microseconds(), most).Slice()
	if err != nil {
		return nil, wrapCall("recent", request.Policy, err)
	}
	starts, err := readStarts(reply)
	return starts, wrapCall("recent", request.Policy, err)
}

// logOf returns the policy's sliding log of that name.
func logOf(p *policy.Policy, name string) (*policy.Limit, error) {
	limit := p.Limit(name)
	switch {
	case limit == nil:
		return nil, fmt.Errorf("throttle: %w: policy %q has no limit %q", ErrNoLog, p.Name, name)
	case limit.Algorithm != policy.SlidingLog:
		return nil, fmt.Errorf("throttle: %w: limit %q of policy %q is a %s, which does not remember who started",
			ErrNoLog, name, p.Name, limit.Algorithm)
	}
	return limit, nil
}

// readStarts reads a reply of at_us, cost and who of each start.
func readStarts(reply []any) ([]Start, error) {
	const each = 3
	if len(reply)%each != 0 {
		return nil, errors.New("an unexpected reply of " + strconv.Itoa(len(reply)) + " values")
	}
	starts := make([]Start, 0, len(reply)/each)
	for ; len(reply) > 0; reply = reply[each:] {
		at, isTime := reply[0].(int64)
		cost, isCost := reply[1].(int64)
		who, isText := reply[2].(string)
		if !isTime || !isCost || !isText {
			return nil, fmt.Errorf("an unexpected reply: %v", reply[:each])
		}
		starts = append(starts, Start{TaskID: who, At: time.UnixMicro(at), Cost: cost})
	}
	return starts, nil
}
