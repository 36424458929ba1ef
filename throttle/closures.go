package throttle

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// closures are what this process knows to be closed, so that a task that waits for a
// slot it got before does not start into a closed upstream. Redis decides; this only
// has the task ask again. Keys are those of states, and "" for the whole policy.
type closures struct {
	mu     sync.Mutex
	closed map[string]closure
}

// closure is since when and until when something is closed, by this process's clock.
type closure struct{ since, until time.Time }

// close notes that a key is closed from now on.
func (c *closures) close(key string, d time.Duration) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.closed = map[string]closure{}
	}
	maps.DeleteFunc(c.closed, func(_ string, of closure) bool { return !now.Before(of.until) }) // what is over is forgotten
	// Hearing of it again is no news: who asked since then knows.
	if until := now.Add(d); c.closed[key].until.Add(sameClosure).Before(until) {
		c.closed[key] = closure{since: now, until: until}
	}
}

// sameClosure is how far apart two answers may tell the end of one closure, because
// each took its time.
const sameClosure = 100 * time.Millisecond

// open forgets that a key is closed.
func (c *closures) open(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.closed, key)
}

// overtook reports whether one of the keys, or the policy, was closed after an answer
// was received, and still is.
func (c *closures) overtook(received, now time.Time, keys func() []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.closed) == 0 {
		return false
	}
	isOf := func(key string) bool {
		of, ok := c.closed[key]
		return ok && received.Before(of.since) && now.Before(of.until)
	}
	return isOf("") || slices.ContainsFunc(keys(), isOf)
}
