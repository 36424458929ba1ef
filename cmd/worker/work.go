package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/worker"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// work runs tasks until ctx ends. An error says why it could not, or why it
// had to stop.
func work(ctx context.Context, o options, log *zap.Logger) error {
	policies, err := readPolicies(o.config)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, o.listen)
	if err != nil {
		return err
	}
	if listener != nil {
		defer func() { _ = listener.Close() }() // whether it came to serve or not
	}
	conn, closeRedis, err := openRedis(o, log)
	if err != nil {
		return err
	}
	defer closeRedis()
	probe, err := newProbe(conn)
	if err != nil {
		return err
	}
	defer probe.close()
	if err := probe.ask(ctx, startProbeTimeout); err != nil {
		return fmt.Errorf("%w\nStart it, name another with -redis URI, or try without one: -embedded", err)
	}

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	server, err := newServer(o, conn, policies, metrics, log)
	if err != nil {
		return err
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	endStatus := serveStatus(listener, probe, metrics, log, stop)
	log.Info("working", zap.Stringer("queues", &o.queues), zap.Int("concurrency", o.concurrency),
		zap.String("policies", o.config), zap.String("redis", probe.address))
	defer reloadOnHangup(server)()
	err = server.Run(ctx)
	log.Info("stopped")
	return errors.Join(err, endStatus())
}

// reloadOnHangup reads the policies file on SIGHUP, as daemons do, until the returned
// function is called. The file is watched anyway; this does not wait for that.
func reloadOnHangup(server *worker.Server) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range hangups {
			_ = server.Reload() // which logs it
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-ended
	}
}

// readPolicies reads the policies file; its error lists every mistake.
func readPolicies(path string) (*policy.Config, error) {
	policies, err := policy.ReadFile(path)
	var mistakes *policy.ConfigError
	switch {
	case errors.As(err, &mistakes):
		return nil, fmt.Errorf("the policies file can not be used, mistakes in it: %d\n%w", len(mistakes.Problems), err)
	case err != nil:
		return nil, fmt.Errorf("%w\nName a readable one with -config FILE", err)
	}
	return policies, nil
}

// newServer makes the server of the built-in tasks.
func newServer(o options, conn asynq.RedisConnOpt, policies *policy.Config, metrics prometheus.Registerer, log *zap.Logger) (*worker.Server, error) {
	if policies.PolicyFor(httprequest.TaskType) == nil {
		log.Warn("no route of the policies file is for this task type, its tasks run without a limit",
			zap.String("task", httprequest.TaskType))
	}
	handler, err := o.httpHandler()
	if err != nil {
		return nil, err
	}
	mux := asynq.NewServeMux()
	mux.Handle(httprequest.TaskType, handler)
	return worker.NewServer(worker.ServerConfig{
		Redis:           conn,
		Policies:        policies,
		PoliciesFile:    o.config,
		Handler:         mux,
		Concurrency:     o.concurrency,
		Queues:          o.queues,
		ShutdownTimeout: o.shutdownTimeout,
		Logger:          log,
		Registerer:      metrics,
		ErrorHandler:    failureLog{log},
	})
}

// failureLog tells the log of tasks that failed, with the reason.
type failureLog struct{ log *zap.Logger }

func (l failureLog) HandleError(ctx context.Context, task *asynq.Task, err error) {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	fields := []zap.Field{zap.String("task", task.Type()), zap.String("id", id), zap.Error(err)}
	if errors.Is(err, asynq.SkipRetry) || asynqfacts.IsLastAttempt(ctx) {
		l.log.Error("task archived", fields...)
		return
	}
	l.log.Warn("task failed, will be retried", append(fields, zap.Int("retried", retried), zap.Int("of", most))...)
}
