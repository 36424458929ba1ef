package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/worker"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

//go:embed policies.yaml
var policiesFile []byte

// concurrency is how many tasks one worker process runs or holds at once.
const concurrency = 10

// tally is what a worker process tells at its end, as a line of JSON.
type tally struct {
	// Attempts is how often a task was handed to this process.
	Attempts int `json:"attempts"`
}

// runWorker is a worker process: it works until ctx ends and then tells its tally.
func runWorker(ctx context.Context, redisURI string, naive bool, stdout io.Writer) error {
	opt, err := asynq.ParseRedisURI(redisURI)
	if err != nil {
		return err
	}
	calls, err := httprequest.NewHandler(httprequest.Config{})
	if err != nil {
		return err
	}
	work := workPaced
	if naive {
		work = workNaively
	}
	attempts, err := work(ctx, opt, calls)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(tally{Attempts: attempts})
}

// workPaced is all there is to a worker that keeps to its policies.
func workPaced(ctx context.Context, opt asynq.RedisConnOpt, calls asynq.Handler) (attempts int, err error) {
	policies, err := policy.Parse("policies.yaml", policiesFile)
	if err != nil {
		return 0, err
	}
	mux := asynq.NewServeMux()
	mux.Handle(httprequest.TaskType, calls)
	metrics := prometheus.NewRegistry()
	server, err := worker.NewServer(worker.ServerConfig{
		Redis:       opt,
		Policies:    policies,
		Handler:     mux,
		Concurrency: concurrency,
		Registerer:  metrics,
	})
	if err != nil {
		return 0, err
	}
	if err := server.Run(ctx); err != nil {
		return 0, err
	}
	return attemptsIn(metrics)
}

// attemptsIn counts how often a task was started or deferred.
func attemptsIn(metrics prometheus.Gatherer) (int, error) {
	families, err := metrics.Gather()
	if err != nil {
		return 0, fmt.Errorf("reading the metrics: %w", err)
	}
	attempts := 0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case "rampmeter_wait_seconds":
				attempts += int(metric.GetHistogram().GetSampleCount())
			case "rampmeter_deferred_total":
				attempts += int(metric.GetCounter().GetValue())
			}
		}
	}
	return attempts, nil
}

// workNaively is what most asynq programs do today: call, and when the API says
// 429, come back when it says so.
func workNaively(ctx context.Context, opt asynq.RedisConnOpt, calls asynq.Handler) (int, error) {
	var attempts atomic.Int64
	counted := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		attempts.Add(1)
		return calls.ProcessTask(ctx, task)
	})
	server := asynq.NewServer(opt, asynq.Config{
		Concurrency: concurrency,
		LogLevel:    asynq.FatalLevel,
		IsFailure: func(err error) bool {
			limited := (*throttle.RateLimitedError)(nil)
			return !errors.As(err, &limited)
		},
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			if limited := (*throttle.RateLimitedError)(nil); errors.As(err, &limited) {
				return limited.RetryAfter
			}
			return asynq.DefaultRetryDelayFunc(n, err, task)
		},
	})
	if err := server.Start(counted); err != nil {
		return 0, err
	}
	<-ctx.Done()
	server.Shutdown()
	return int(attempts.Load()), nil
}
