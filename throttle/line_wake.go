package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Waking says how far ahead tasks are woken.
type Waking struct {
	// As names the process: of those that ask, one at a time is the one to wake.
	As string
	// Near is how long before its slot a task has to be woken for it to be there in
	// time.
	Near time.Duration
	// Hold is how long a task holds a slot of a concurrency limit, on the average;
	// see [Listener]. Zero means that this is not known: nobody is woken to stand by.
	Hold time.Duration
	// StandBy is how many tasks may be woken to stand by for slots, at most.
	StandBy int
	// Gone are tasks that were to be woken and are not there any more: they leave the
	// line, and their places go to those behind them.
	Gone []WokenTask
	// Leaves tells that this process wakes nobody any more: another one may at once,
	// instead of after its term.
	Leaves bool
}

// Call is what there is to do for a policy's waiting line.
type Call struct {
	// Tasks are to be woken now, in this order. Each is a Request's TaskID.
	Tasks []WokenTask
	// Leads tells that this process is the one to wake.
	Leads bool
	// Next is when to ask again, if no signal comes before; zero for not before one.
	Next time.Duration
}

// WokenTask is a task whose turn has come. It is waited for until it asks, and woken
// again after a while if it does not.
type WokenTask struct {
	// TaskID is that of the Request that joined the line.
	TaskID string
	name   string
}

const (
	// wakeTerm is how long a process that says nothing remains the one to wake.
	wakeTerm = 2 * time.Second
	// wakeReach is how much further than necessary a call fills slots, so that not
	// every slot costs a call.
	wakeReach = 100 * time.Millisecond
	// recallBelief is how long who stood in another line may take to ask.
	recallBelief = 2 * time.Second
)

// Wake tells which tasks of a policy's waiting line to wake now: those that would
// get a slot within about w.Near. It takes nothing from any limit: a woken task asks
// like any other. It is meant to be called by one dispatcher in each process.
func (l *Limiter) Wake(ctx context.Context, policy string, w Waking) (Call, error) {
	calls, err := l.calls(policy)
	if err != nil {
		return Call{}, err
	}
	args := calls.args("wake", calls.line.head...)
	for i := range calls.policy.Limits {
		args = append(args, stateKey(policy, calls.policy.Limits[i].Name, ""))
	}
	term := wakeTerm
	if w.Leaves {
		term = 0
	}
	args = append(args, w.As, term.Microseconds(), w.Near.Microseconds(), wakeReach.Microseconds(), w.Hold.Microseconds(), w.StandBy)
	for _, task := range w.Gone {
		args = append(args, task.name)
	}
	reply, err := calls.scripts.Limits.Run(ctx, l.redis, []string{calls.freezeKey, calls.line.key}, args...).Slice()
	if err != nil {
		return Call{}, wrapCall("wake", policy, err)
	}
	call, err := readCall(reply)
	return call, wrapCall("wake", policy, err)
}

// Review has all tasks of a policy's waiting line looked at anew that were found to be
// held back by a limit of their own: those numbers may not be in force any more. It is
// meant to be called by dispatchers after an Update.
func (l *Limiter) Review(ctx context.Context, policy string) error {
	calls, err := l.calls(policy)
	if err != nil {
		return err
	}
	for {
		more, err := calls.scripts.Review.Run(ctx, l.redis, []string{calls.line.key}).Bool()
		if err != nil || !more {
			return wrapCall("review", policy, err)
		}
	}
}

// readCall reads a reply of now_us, leads, next_us and members.
func readCall(reply []any) (Call, error) {
	const head = 3
	if len(reply) < head {
		return Call{}, errors.New("an unexpected reply of " + fmt.Sprint(len(reply)) + " values")
	}
	var numbers [head]int64
	for i := range numbers {
		number, ok := reply[i].(int64)
		if !ok {
			return Call{}, fmt.Errorf("an unexpected reply: %v", reply[:head])
		}
		numbers[i] = number
	}
	call := Call{Leads: numbers[1] == 1}
	if next := numbers[2]; next > 0 {
		call.Next = max(time.Microsecond, time.Duration(next-numbers[0])*time.Microsecond)
	}
	for _, value := range reply[head:] {
		name, ok := value.(string)
		if !ok {
			return Call{}, fmt.Errorf("an unexpected reply: %v", value)
		}
		call.Tasks = append(call.Tasks, WokenTask{TaskID: taskOf(name), name: name})
	}
	return call, nil
}

// AreExpected tells of woken tasks whether they are still waited for: they have not
// asked yet, and so do not stand by.
func (l *Limiter) AreExpected(ctx context.Context, policy string, tasks ...WokenTask) ([]bool, error) {
	expected := make([]bool, len(tasks))
	calls, err := l.calls(policy)
	if err != nil || len(tasks) == 0 {
		return expected, err
	}
	names := make([]string, len(tasks))
	for i := range tasks {
		names[i] = tasks[i].name
	}
	woken, err := l.redis.ZMScore(ctx, calls.line.key+"/woken", names...).Result()
	for i := range woken {
		expected[i] = woken[i] > 0
	}
	return expected, wrapCall("expected", policy, err)
}
