package throttle

import (
	"context"
	"time"

	"github.com/rampmeter/rampmeter/internal/line"
)

// refusedMemory is how long after its last refusal a task's are forgotten. Tasks come
// back from a refusal within a policy's longest freeze, which mostly is an hour.
const refusedMemory = 24 * time.Hour

// CountRefusal counts that the upstream refused a call of that task, and returns how
// often it did, in all attempts and processes. A task is forgotten a day after its
// last refusal.
func (l *Limiter) CountRefusal(ctx context.Context, policy, taskID string) (int64, error) {
	calls, err := l.calls(policy)
	if err != nil {
		return 0, err
	}
	key := line.KeyPrefix(policy) + "/refused:" + line.KeyName(taskID)
	times, err := calls.scripts.Refused.Run(ctx, l.redis, []string{key, calls.newMark()}, refusedMemory.Microseconds()).Int64()
	return times, wrapCall("count a refusal", policy, err)
}
