package worker

import (
	"context"
	"sync"
	"time"
)

// tempo is what is known of how slots of concurrency limits come back, for one policy:
// how long tasks hold them, and how many processes there are that could take them.
type tempo struct {
	mu    sync.Mutex
	held  time.Duration // on the average
	count int           // of processes
	asked time.Time     // when they were counted
}

// tempoParts is how much of the average the last task is.
const tempoParts = 16

// hear takes note of how long a task held its slot.
func (t *tempo) hear(held time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == 0 {
		t.held = held
	}
	t.held += (held - t.held) / tempoParts
}

// hold is how long a task holds its slot; zero if that is not known.
func (t *tempo) hold() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// countEvery is how long the number of processes is believed in.
const countEvery = 5 * time.Second

// processes is how many there are, at least one, by asking from time to time.
func (t *tempo) processes(ctx context.Context, ask func(context.Context) (int, error)) int {
	if t.count == 0 || time.Since(t.asked) > countEvery {
		count, err := ask(ctx)
		if err != nil {
			count = t.count // it was that many
		}
		t.count, t.asked = max(1, count), time.Now()
	}
	return t.count
}
