package throttletest

import (
	"errors"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/internal/embedded"
)

// Server is a running Redis of one's own: empty at its start, on a loopback port,
// gone after Close. Its methods are safe for concurrent use.
type Server struct {
	addr   string
	client *redis.Client
	// stop closes the client, ends the server and frees what it held, once.
	stop func() error
}

// newServer returns a Server that stop ends.
func newServer(addr string, stop func() error) *Server {
	s := &Server{addr: addr}
	s.client = redis.NewClient(s.Options())
	s.stop = sync.OnceValue(func() error {
		err := s.client.Close()
		if errors.Is(err, redis.ErrClosed) {
			err = nil // somebody tidy was here before
		}
		return errors.Join(err, stop())
	})
	return s
}

// Addr is where the server listens, as host:port.
func (s *Server) Addr() string { return s.addr }

// URI is the server's address as programs take it: redis://127.0.0.1:6379.
func (s *Server) URI() string { return "redis://" + s.addr }

// Options are for a client of one's own. Each call returns new ones.
func (s *Server) Options() *redis.Options { return &redis.Options{Addr: s.addr} }

// Client returns the server's own client, the same for every caller. Close closes
// it with the server.
func (s *Server) Client() *redis.Client { return s.client }

// Close ends the server and forgets its data. It returns once the server is gone;
// closing again does nothing more.
func (s *Server) Close() error { return s.stop() }

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
