package throttletest

import (
	"github.com/alicebob/miniredis/v2"

	"github.com/rampmeter/rampmeter/internal/embedded"
)

// EmbeddedConfig says how to start an embedded Redis. The zero value is good for
// most.
type EmbeddedConfig struct {
	// Addr is the host:port to listen on. Empty means a free port of 127.0.0.1.
	Addr string
	// Clock, if set, is the server's time: both what TIME answers and what keys
	// expire by. Nil means real time.
	Clock *Clock
}

// StartEmbedded starts a Redis inside this process; it needs nothing installed.
// Data lives in memory and ends with Close, which the caller owes it.
//
// It is good enough for scripts, expiry and asynq, at a fraction of a real
// server's speed. It has one mutex for all and is no place for data that matters.
func StartEmbedded(cfg EmbeddedConfig) (*Server, error) {
	release := func() {}
	mini, err := embedded.Start(cfg.Addr, func(mini *miniredis.Miniredis) {
		if cfg.Clock != nil {
			cfg.Clock.drive(mini)
			release = func() { cfg.Clock.release(mini) }
		}
	})
	if err != nil {
		release()
		return nil, err
	}
	return newServer(mini.Addr(), func() error {
		release()
		mini.Close()
		return nil
	}), nil
}
