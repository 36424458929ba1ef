package throttletest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Clock is time that stands still until it is told to move. It drives the
// embedded servers that were started with it, and its Now fits wherever a func()
// time.Time is asked for. A Clock is safe for concurrent use.
//
// It has nanoseconds; a server's TIME shows whole microseconds, rounded down as
// Redis does.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	driven []*miniredis.Miniredis
}

// NewClock returns a clock that stands at t. It panics if t is before 1970, which
// no Redis can tell.
func NewClock(t time.Time) *Clock {
	return &Clock{now: redisTime(t)}
}

// Now is where the clock stands.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Set moves the clock to t, and every server it drives. Moving forward expires
// the keys whose time has come. Moving back is what a failover to a server with a
// slow clock looks like: TIME steps back and no key's remaining life changes.
// Set panics if t is before 1970.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(t)
}

// Advance moves the clock forward by d, or back by a negative d, as Set does, and
// returns where it stands then.
func (c *Clock) Advance(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(c.now.Add(d))
	return c.now
}

func (c *Clock) set(t time.Time) {
	c.now = redisTime(t)
	for _, mini := range c.driven {
		mini.SetTime(c.now)
	}
}

func (c *Clock) drive(mini *miniredis.Miniredis) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.driven = append(c.driven, mini)
	mini.SetTime(c.now)
}

func (c *Clock) release(mini *miniredis.Miniredis) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.driven = slices.DeleteFunc(c.driven, func(m *miniredis.Miniredis) bool { return m == mini })
}

// redisTime returns t without its monotonic reading: a clock that is moved by
// hand and real time must not be told apart by how they were made.
func redisTime(t time.Time) time.Time {
	if t.Before(time.Unix(0, 0)) {
		panic(fmt.Sprintf("throttletest: a clock can not stand at %s: Redis counts from 1970", t))
	}
	return t.Round(0)
}
