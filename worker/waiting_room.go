package worker

import (
	"sync"

	"github.com/rampmeter/rampmeter/internal/line"
)

// waitingRoom is where tasks stay in this process, and with a worker, until they are
// called.
type waitingRoom struct {
	mu    sync.Mutex
	calls map[string]chan line.Slot
}

// enter returns a channel that has something when the task is called: the slot that was
// handed to it, or a zero one; and a function to leave by.
func (r *waitingRoom) enter(task string) (called <-chan line.Slot, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]chan line.Slot{}
	}
	call := make(chan line.Slot, 1)
	r.calls[task] = call
	return call, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls[task] == call {
			delete(r.calls, task)
		}
	}
}

// call calls a task, and reports whether it is here.
func (r *waitingRoom) call(task string, slot line.Slot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	call, here := r.calls[task]
	select {
	case call <- slot:
	default: // it is not here, or called already: then it asks, and finds the slot
	}
	return here
}
