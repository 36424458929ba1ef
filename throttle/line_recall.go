package throttle

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/lua"
)

// Recall tells which tasks to wake that stand in a line which nobody serves any more: an
// update has made their policy one whose tasks stand in line by another lane or other
// attributes of limits, or has removed it. A woken task asks anew; if it has to wait, it
// finds its place in the line of now by when it came, or at its end if limits count its
// cost by other attributes. Call.Next is when to ask again, and
// zero if there is no such line; Call.Leads is false while another process serves it,
// which may not have heard of the update yet.
//
// It is meant to be called by dispatchers, some moments after an Update and now and then.
func (l *Limiter) Recall(ctx context.Context, policy string, w Waking) (Call, error) {
	lines, err := l.redis.SMembers(ctx, linesKey(policy)).Result()
	if err != nil {
		return Call{}, wrapCall("recall", policy, err)
	}
	slices.Sort(lines)
	scripts, now := lua.New(), ""
	if calls, err := l.calls(policy); err == nil {
		scripts, now = calls.scripts, calls.line.key
	}
	all := Call{Leads: true}
	for _, line := range lines {
		if line == now {
			continue
		}
		call, err := l.recallFrom(ctx, scripts.Recall, policy, line, now, w)
		if err != nil {
			return Call{}, wrapCall("recall", policy, err)
		}
		all.Tasks = append(all.Tasks, call.Tasks...)
		all.Leads = all.Leads && call.Leads
		if call.Next > 0 && (all.Next == 0 || call.Next < all.Next) {
			all.Next = call.Next
		}
	}
	return all, nil
}

func (l *Limiter) recallFrom(ctx context.Context, script *redis.Script, policy, line, now string, w Waking) (Call, error) {
	keys := []string{line, linesKey(policy)}
	if now != "" {
		keys = append(keys, now)
	}
	reply, err := script.Run(ctx, l.redis, keys, w.As, (w.Near + recallBelief).Microseconds()).Slice()
	if err != nil {
		return Call{}, err
	}
	return readCall(reply)
}
