package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// ServerConfig is what a Server is made of.
type ServerConfig struct {
	// Redis is where the tasks and the limits live. Required.
	Redis asynq.RedisConnOpt
	// Policies are the limits, and which tasks they are for. Required without a
	// PoliciesFile.
	Policies *policy.Config
	// PoliciesFile holds the policies, if Policies is nil, and is watched while the
	// server runs: see [MiddlewareConfig].
	PoliciesFile string
	// Handler runs the tasks, usually an [asynq.ServeMux]. Required.
	Handler asynq.Handler
	// Concurrency is how many tasks run or wait in this process at once. Zero
	// means 10.
	Concurrency int
	// Queues are the queues to serve with their weights. Empty means "default".
	Queues map[string]int
	// ShutdownTimeout is how long running tasks may take to finish once the
	// server stops; then asynq puts them back. Zero means 8 seconds.
	ShutdownTimeout time.Duration
	// ErrorHandler hears of tasks that failed, never of deferred ones. May be nil.
	ErrorHandler asynq.ErrorHandler
	// Attributes, Logger, Registerer, MaxRefusals, Fallbacks and OnOverload are those of
	// [MiddlewareConfig].
	Attributes  func(*asynq.Task) map[string]string
	Logger      *zap.Logger
	Registerer  prometheus.Registerer
	MaxRefusals int64
	Fallbacks   map[string]asynq.Handler
	OnOverload  func(context.Context, *asynq.Task, *throttle.OverloadError) policy.Overload
}

// Defaults of a Server.
const (
	defaultConcurrency     = 10
	defaultShutdownTimeout = 8 * time.Second
	// How often an empty queue, and the rescheduled tasks, are looked at, instead of
	// asynq's own second and five.
	taskCheckInterval    = 200 * time.Millisecond
	delayedCheckInterval = 500 * time.Millisecond
)

// Server is an asynq server whose tasks keep to their policies.
type Server struct {
	handler    asynq.Handler
	client     redis.UniversalClient
	middleware *Middleware
	asynq      *asynq.Server
}

// NewServer returns a Server, or an error when config is incomplete or its
// policies are invalid. It does not connect to Redis yet.
func NewServer(config ServerConfig) (s *Server, err error) {
	if config.Policies == nil && config.PoliciesFile != "" {
		if config.Policies, err = policy.ReadFile(config.PoliciesFile); err != nil {
			return nil, err
		}
	}
	if config.Redis == nil || config.Policies == nil || config.Handler == nil {
		return nil, errors.New("worker: ServerConfig needs Redis, Handler, and Policies or a PoliciesFile")
	}
	if config.Concurrency <= 0 {
		config.Concurrency = defaultConcurrency
	}
	if config.ShutdownTimeout <= 0 {
		config.ShutdownTimeout = defaultShutdownTimeout
	}
	config.Logger = cmp.Or(config.Logger, zap.NewNop())
	client, err := connect(config.Redis)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = client.Close()
		}
	}()
	limiter, err := throttle.New(client, config.Policies)
	if err != nil {
		return nil, err
	}
	middleware, err := NewMiddleware(MiddlewareConfig{
		Limiter:      limiter,
		PoliciesFile: config.PoliciesFile,
		Attributes:   config.Attributes,
		Logger:       config.Logger,
		Registerer:   config.Registerer,
		MaxRefusals:  config.MaxRefusals,
		Fallbacks:    config.Fallbacks,
		OnOverload:   config.OnOverload,
	})
	if err != nil {
		return nil, err
	}
	server := asynq.NewServerFromRedisClient(client, middleware.Configure(asynq.Config{
		Concurrency:              config.Concurrency,
		Queues:                   config.Queues,
		ShutdownTimeout:          config.ShutdownTimeout,
		ErrorHandler:             config.ErrorHandler,
		Logger:                   asynqLogger{config.Logger.Named("asynq").Sugar()},
		TaskCheckInterval:        taskCheckInterval,
		DelayedTaskCheckInterval: delayedCheckInterval,
	}))
	return &Server{handler: config.Handler, client: client, middleware: middleware, asynq: server}, nil
}

// Run serves until ctx ends and then shuts down: waiting tasks are put back at
// once, running ones get the ShutdownTimeout. It returns nil after a clean
// shutdown and an error when the server could not start. A Server runs once.
func (s *Server) Run(ctx context.Context) error {
	defer s.client.Close()
	defer s.middleware.Close()
	if err := s.asynq.Start(s.middleware.Wrap(s.handler)); err != nil {
		return fmt.Errorf("worker: starting: %w", err)
	}
	<-ctx.Done()
	s.asynq.Stop()
	s.middleware.Drain()
	s.asynq.Shutdown()
	return nil
}

// Update and Reload are those of [Middleware].
func (s *Server) Update(policies *policy.Config) error { return s.middleware.Update(policies) }

// Reload reads the PoliciesFile now: see [Middleware.Reload].
func (s *Server) Reload() error { return s.middleware.Reload() }

// asynqLogger lets asynq write to a zap log.
type asynqLogger struct{ *zap.SugaredLogger }
