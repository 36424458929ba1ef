package line

import (
	"context"
	"slices"
)

// Recall tells which tasks to wake that stand in a line which nobody serves any more: an
// update has made their policy one whose tasks stand in line by another lane or other
// attributes of limits, or has removed it. A woken task asks anew; if it has to wait, it
// finds its place in the line of now by when it came, or at its end if limits count its
// cost by other attributes. Call.Next is when to ask again, and zero if there is no such
// line; Call.Leads is false while another process serves it, which may not have heard of
// the update yet.
//
// It is meant to be called by dispatchers, some moments after an Update and now and then.
func (l *Line) Recall(ctx context.Context, w Waking) (Call, error) {
	lines, err := l.redis.SMembers(ctx, linesKey(l.policy)).Result()
	if err != nil {
		return Call{}, l.wrap("recall", err)
	}
	slices.Sort(lines)
	all := Call{Leads: true}
	for _, key := range lines {
		if key == l.Key {
			continue
		}
		call, err := l.recallFrom(ctx, key, w)
		if err != nil {
			return Call{}, l.wrap("recall", err)
		}
		all.Tasks = append(all.Tasks, call.Tasks...)
		all.Leads = all.Leads && call.Leads
		if call.Next > 0 && (all.Next == 0 || call.Next < all.Next) {
			all.Next = call.Next
		}
	}
	return all, nil
}

// recallFrom recalls tasks of the line at that key.
func (l *Line) recallFrom(ctx context.Context, key string, w Waking) (Call, error) {
	keys := []string{key, linesKey(l.policy)}
	if l.removed == nil {
		keys = append(keys, l.Key)
	}
	reply, err := l.Scripts.Recall.Run(ctx, l.redis, keys, w.As, (w.Near + recallBelief).Microseconds()).Slice()
	if err != nil {
		return Call{}, err
	}
	return readCall(reply)
}
