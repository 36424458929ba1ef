package worker

import (
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
)

// crowd is the tasks that wait in this process for their slots, or have them.
type crowd struct {
	waiting atomic.Int64
	working atomic.Int64
	workers atomic.Int64 // of all servers that share the middleware
}

// enter counts one more, until the returned function is called.
func (c *crowd) enter() (leave func()) {
	c.waiting.Add(1)
	return func() { c.waiting.Add(-1) }
}

// work counts one that has its slot, until the returned function is called.
func (c *crowd) work() (end func()) {
	c.working.Add(1)
	return func() { c.working.Add(-1) }
}

// spare is how many workers may stand by: three quarters of those that have no other
// work, so that other tasks find some.
func (c *crowd) spare() int {
	return int(max(0, c.size()-c.working.Load()) * 3 / 4)
}

// size is how many workers there are.
func (c *crowd) size() int64 {
	if workers := c.workers.Load(); workers > 0 {
		return workers
	}
	return int64(asynqfacts.DefaultConcurrency())
}

// isDense reports whether half of the workers do nothing but wait.
func (c *crowd) isDense() bool {
	return 2*c.waiting.Load() >= c.size()
}

// observe takes from a server's configuration what matters here: how many workers it
// has, and how late it finds a task that was woken.
func (m *Middleware) observe(config asynq.Config) {
	m.crowd.workers.Add(int64(max(0, config.Concurrency)))
	m.near.Store(int64(asynqfacts.LongestPause(config.TaskCheckInterval) + wakeMargin))
}

// wakeMargin is what a wake takes besides: some round trips on a busy machine.
const wakeMargin = 50 * time.Millisecond
