package worker

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/line"
)

const (
	// recallGrace is how long after an update tasks are left in a line that is not served
	// any more: other processes are told of the update at about the same time, and would
	// put them there again.
	recallGrace = time.Second
	// recallRound is how often such lines are looked for, besides: a process that served
	// one may end at any time.
	recallRound = 30 * time.Second
)

// recall has the tasks of a policy ask anew that stand in a line as it was before an
// update, until ctx ends. For a policy that was removed it ends with the last of them.
func (d *dispatcher) recall(ctx context.Context, policy string, updated <-chan struct{}) {
	s := &shift{dispatcher: d, policy: policy, rerouted: new(atomic.Bool), recalls: true}
	timer := time.NewTimer(recallGrace)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-updated:
			timer.Reset(recallGrace)
			continue
		case <-timer.C:
		}
		if isRemoved := updated == nil; isRemoved && s.limiter.Config().Policy(policy) != nil {
			return // it is back, and so is its service
		}
		next := s.recall(ctx)
		if next == 0 && updated == nil {
			return
		}
		timer.Reset(cmp.Or(next, recallRound))
	}
}

// recall wakes some of them, and tells when to go on; zero if there are no more.
func (s *shift) recall(ctx context.Context) (next time.Duration) {
	call, err := s.line().Recall(ctx, line.Waking{As: s.as, Near: time.Duration(s.near.Load())})
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("could not ask who stands in line by what was in force before", zap.String("policy", s.policy), zap.Error(err))
		}
		return longestRest
	}
	again := s.wake(ctx, call.Tasks)
	s.gone = nil // who was recalled has left the line already
	if len(s.busy) == 0 {
		return call.Next
	}
	return min(cmp.Or(call.Next, again), again)
}
