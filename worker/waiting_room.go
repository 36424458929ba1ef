package worker

import "sync"

// waitingRoom is where tasks stay in this process, and with a worker, until they are
// called.
type waitingRoom struct {
	mu    sync.Mutex
	calls map[string]chan struct{}
}

// enter returns a channel that has something when the task is called, and a function
// to leave by.
func (r *waitingRoom) enter(task string) (called <-chan struct{}, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]chan struct{}{}
	}
	call := make(chan struct{}, 1)
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
func (r *waitingRoom) call(task string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	call, here := r.calls[task]
	select {
	case call <- struct{}{}:
	default: // it is not here, or called already
	}
	return here
}
