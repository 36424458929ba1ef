// Package embedded is a Redis inside the process, for commands and tests alike. It needs
// nothing installed, and what uses it does not import the package testing.
package embedded

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// Redis is a server whose data lives in memory and ends with Close. Its methods are safe
// for concurrent use.
//
// It is good enough for scripts, expiry and asynq, at a fraction of a real server's speed.
// It has one mutex for all and is no place for data that matters.
type Redis struct{ mini *miniredis.Miniredis }

// New returns a server that does not listen yet. Its time is real time.
func New() *Redis {
	mini := miniredis.NewMiniRedis()
	// By itself miniredis keeps every key until it is told that time went by. This
	// has it look at the clock at every command, as Redis does.
	mini.ClockTTL(true)
	return &Redis{mini}
}

// SetTime has the server's time stand still at t: both what TIME answers and what keys
// expire by. A later call moves it.
func (r *Redis) SetTime(t time.Time) { r.mini.SetTime(t) }

// Listen makes the server reachable at addr, a host:port; empty means a free port of
// 127.0.0.1. The caller owes a call of Close after it, unless it returns an error.
func (r *Redis) Listen(addr string) error {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	if err := r.mini.StartAddr(addr); err != nil {
		return fmt.Errorf("start embedded redis: %w", err)
	}
	return nil
}

// Addr is where the server listens, as host:port.
func (r *Redis) Addr() string { return r.mini.Addr() }

// URI is the server's address as programs take it: redis://127.0.0.1:6379.
func (r *Redis) URI() string { return "redis://" + r.Addr() }

// Close ends the server and forgets its data. It returns once the server is gone.
func (r *Redis) Close() { r.mini.Close() }
