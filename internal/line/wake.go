package line

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rampmeter/rampmeter/lua"
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
	// Tasks are to be woken now, in this order.
	Tasks []WokenTask
	// Leads tells that this process is the one to wake.
	Leads bool
	// Next is when to ask again, if no signal comes before; zero for not before one.
	Next time.Duration
}

// WokenTask is a task whose turn has come. It is waited for until it asks, and woken
// again after a while if it does not.
type WokenTask struct {
	// TaskID is that of the request that joined the line.
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

// Wake tells which tasks of the line to wake now: those that would get a slot within about
// w.Near. It takes nothing from any limit: a woken task asks like any other. It is meant to
// be called by one dispatcher in each process.
func (l *Line) Wake(ctx context.Context, w Waking) (Call, error) {
	if l.removed != nil {
		return Call{}, l.removed
	}
	term := wakeTerm
	if w.Leaves {
		term = 0
	}
	args := append(slices.Clip(l.waking), w.As, term.Microseconds(), w.Near.Microseconds(), wakeReach.Microseconds(), w.Hold.Microseconds(), w.StandBy)
	for _, task := range w.Gone {
		args = append(args, task.name)
	}
	return l.ask(ctx, "wake", []string{FreezeKey(l.policy), l.Key}, args...)
}

// Review has all tasks of the line looked at anew that were found to be held back by a
// limit of their own: those numbers may not be in force any more. It is meant to be called
// by dispatchers after an Update.
func (l *Line) Review(ctx context.Context) error {
	if l.removed != nil {
		return l.removed
	}
	for {
		more, err := l.Scripts.Review.Run(ctx, l.redis, []string{l.Key}).Bool()
		if err != nil || !more {
			return l.wrap("review", err)
		}
	}
}

// ask runs an operation that replies now_us, leads, next_us and names of tasks.
func (l *Line) ask(ctx context.Context, operation string, keys []string, args ...any) (call Call, err error) {
	reply, err := l.Scripts.Limits.Run(ctx, l.redis, keys, args...).Slice()
	if err != nil {
		return Call{}, l.wrap(operation, err)
	}
	var head []int64
	for i, value := range reply {
		number, isNumber := value.(int64)
		name, isName := value.(string)
		switch {
		case i < 3 && isNumber:
			head = append(head, number)
		case i >= 3 && isName:
			call.Tasks = append(call.Tasks, WokenTask{TaskID: taskOf(name), name: name})
		}
	}
	if len(head) < 3 || len(head)+len(call.Tasks) < len(reply) {
		return Call{}, l.wrap(operation, fmt.Errorf("an unexpected reply: %v", reply))
	}
	if call.Leads = head[1] == 1; head[2] > 0 {
		call.Next = max(time.Microsecond, time.Duration(head[2]-head[0])*time.Microsecond)
	}
	return call, nil
}

// AreExpected tells of woken tasks whether they are still waited for: they have not
// asked yet, and so do not stand by.
func (l *Line) AreExpected(ctx context.Context, tasks ...WokenTask) ([]bool, error) {
	expected := make([]bool, len(tasks))
	if l.removed != nil || len(tasks) == 0 {
		return expected, l.removed
	}
	names := make([]string, len(tasks))
	for i := range tasks {
		names[i] = tasks[i].name
	}
	awake, err := l.redis.HMGet(ctx, l.Key+"/awake", names...).Result()
	for i := range awake {
		expected[i] = awake[i] != nil
	}
	return expected, l.wrap("expected", err)
}

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
	// Lines are listed that have somebody in them.
	listed := KeyPrefix(l.policy) + "/lines"
	lines, err := l.redis.SMembers(ctx, listed).Result()
	if err != nil {
		return Call{}, l.wrap("recall", err)
	}
	slices.Sort(lines)
	all := Call{Leads: true}
	for _, key := range lines {
		if key == l.Key {
			continue
		}
		keys := []string{FreezeKey(l.policy), key}
		if l.removed == nil {
			keys = append(keys, l.Key)
		}
		args := append(lua.Head(), "recall", true, w.As, wakeTerm.Microseconds(), (w.Near + recallBelief).Microseconds(), 0, 0, 0)
		call, err := l.ask(ctx, "recall", keys, args...)
		if err != nil {
			return Call{}, err
		}
		all.Tasks = append(all.Tasks, call.Tasks...)
		all.Leads = all.Leads && call.Leads
		if call.Next > 0 && (all.Next == 0 || call.Next < all.Next) {
			all.Next = call.Next
		}
	}
	return all, nil
}
