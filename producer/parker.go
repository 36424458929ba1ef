package producer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// parker enqueues tasks that would have to wait straight into the waiting lines of
// their policies.
//
// asynq gets the task first, scheduled for when it would come back by itself from a
// line that was lost; then it joins the line, from where it is woken in its turn. So
// whatever happens in between, the task is never in line but not there: at worst it
// comes late. A line that has emptied meanwhile has it woken at once. Nor does a caller
// who leaves in between make it late: who has begun to park goes on to the end.
type parker struct {
	client     *asynq.Client
	limiter    *throttle.Limiter
	attributes func(*asynq.Task) map[string]string
	log        *zap.Logger
	rehearsal  *rehearsal
}

// newParker returns one with the defaults of what config leaves out.
func newParker(config Config) *parker {
	p := &parker{
		client: config.Client, limiter: config.Limiter, attributes: config.Attributes, log: config.Logger,
		rehearsal: newRehearsal(),
	}
	if p.client == nil {
		p.client = asynq.NewClientFromRedisClient(config.Limiter.Redis())
	}
	if p.attributes == nil {
		p.attributes = (*asynq.Task).Headers
	}
	if p.log == nil {
		p.log = zap.NewNop()
	}
	return p
}

// parkTimeout bounds the two steps of parking, which the end of the caller's context
// does not break off.
const parkTimeout = 5 * time.Second

// enqueue parks a task, or reports that it is to be enqueued the plain way. A batch
// tells what else it has enqueued; b is nil for a task by itself.
func (p *parker) enqueue(ctx context.Context, task *asynq.Task, options []asynq.Option, b *burst) (info *asynq.TaskInfo, parks bool, err error) {
	policy := p.limiter.Config().PolicyFor(task.Type())
	if policy == nil || !takesAll(policy) {
		return nil, false, nil
	}
	plan, simple := p.rehearsal.enqueue(task, options)
	if !simple {
		return nil, false, nil
	}
	request := throttle.Request{
		Policy: policy.Name, TaskID: throttle.TaskName(plan.Queue, plan.ID), Attributes: p.attributes(task),
		MaxWait: policy.Wait(),
	}
	back, since, waits := p.lookAhead(ctx, policy, request, b)
	if !waits {
		return nil, false, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, true, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), parkTimeout)
	defer cancel()
	info, err = p.schedule(ctx, task, options, plan, back)
	if err != nil {
		return nil, true, err
	}
	if _, err := p.limiter.Join(ctx, request, since); err != nil {
		p.log.Warn("could not put a task into line, it comes by itself later", zap.String("policy", policy.Name),
			zap.String("task_id", request.TaskID), zap.Duration("comes_in", back), zap.Error(err))
	}
	return info, true, nil
}

// lookAhead tells whether a task would have to wait in line, in how long it is to come
// back by itself then, and since when it stands there; since is zero for from when it
// joins. Where nobody can tell, and of a task that can never start, a worker will.
func (p *parker) lookAhead(ctx context.Context, policy *policy.Policy, request throttle.Request, b *burst) (back time.Duration, since time.Time, waits bool) {
	ahead, err := p.limiter.LookAhead(ctx, request)
	switch {
	case err != nil, ahead.Outcome == throttle.Never:
		return 0, time.Time{}, false
	case ahead.Place != nil:
		return policy.Backstop(ahead.RetryAfter(), ahead.HeldBy), ahead.Place.Since, true
	}
	missing := b.missing(policy, &ahead, time.Now())
	return policy.Backstop(missing, ""), time.Time{}, missing > 0
}

// schedule gives a task to asynq, to bring back by itself in so long, as the plan says
// otherwise.
func (p *parker) schedule(ctx context.Context, task *asynq.Task, options []asynq.Option, plan *asynq.TaskInfo, back time.Duration) (*asynq.TaskInfo, error) {
	parked := slices.Concat(options, []asynq.Option{asynq.TaskID(plan.ID), asynq.ProcessIn(back)})
	info, err := p.client.EnqueueContext(ctx, task, parked...)
	if !p.isDone(err, plan, task, options) {
		return info, err
	}
	plan.State, plan.NextProcessAt = asynq.TaskStateScheduled, time.Now().Add(back)
	return plan, nil
}

// isDone reports whether the plan is carried out in spite of that error: an ID that was
// made up is taken by ourselves only, by a first try whose answer was lost.
func (p *parker) isDone(err error, plan *asynq.TaskInfo, task *asynq.Task, options []asynq.Option) bool {
	if !errors.Is(err, asynq.ErrTaskIDConflict) {
		return false
	}
	another, simple := p.rehearsal.enqueue(task, options)
	return simple && another.ID != plan.ID
}

// takesAll reports whether every task of the policy may stand in line. Where some may
// not, a worker decides.
func takesAll(p *policy.Policy) bool {
	return p.Strategy() == policy.OverloadPark && p.MaxDefer == 0
}
