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

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/worker"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

//go:embed policies.yaml
var policiesFile []byte

// jobVariable makes a process of this program a worker: it holds the job.
const jobVariable = "RAMPMETER_EXAMPLE_JOB"

// job is what a worker process has to know.
type job struct {
	Redis    string `json:"redis"`
	Policies string `json:"policies"` // the path of the file; empty for a naive worker
}

// tally is what a worker process tells at its end, as a line of JSON.
type tally struct {
	// Attempts is how often a task was handed to this process.
	Attempts int64 `json:"attempts"`
}

// startFleet starts this program n times over as a worker. The caller stops it.
func startFleet(n int, j job) (fleet, error) {
	var f fleet
	for range n {
		w, err := program.StartSelf(jobVariable, j)
		if err != nil {
			_, _ = f.stop()
			return nil, err
		}
		f = append(f, w)
	}
	return f, nil
}

// fleet is the worker processes.
type fleet []*program.Worker

// stop has every worker end, waits for them, and returns the sum of their tallies.
func (f fleet) stop() (sum tally, err error) {
	for _, w := range f {
		w.End()
	}
	for _, w := range f {
		var told tally
		if failed := w.Words.Decode(&told); failed != nil {
			err = errors.Join(err, w.Failed(failed))
		}
		err = errors.Join(err, w.Stop())
		sum.Attempts += told.Attempts
	}
	return sum, err
}

// runWorker is a worker process: it works until its standard input ends, and then tells
// its tally.
func runWorker(text string, stdin io.Reader, stdout io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return fmt.Errorf("%s: %w", jobVariable, err)
	}
	redis, err := asynq.ParseRedisURI(j.Redis)
	if err != nil {
		return err
	}
	calls, err := httprequest.NewHandler(httprequest.Config{})
	if err != nil {
		return err
	}
	config := asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel} // tasks that one process runs or holds at once
	if j.Policies == "" {
		return work(asynq.NewServer(redis, naively(config)), calls, func() {}, stdin, stdout)
	}
	// All there is to a worker that keeps to its policies.
	pace, err := worker.Open(redis, j.Policies)
	if err != nil {
		return err
	}
	defer pace.Close()
	return work(asynq.NewServer(redis, pace.Configure(config)), pace.Wrap(calls), pace.Drain, stdin, stdout)
}

// work runs a server until stdin ends. Drain is called when it takes no more tasks.
func work(server *asynq.Server, handler asynq.Handler, drain func(), stdin io.Reader, stdout io.Writer) error {
	var attempts atomic.Int64
	err := server.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		attempts.Add(1)
		return handler.ProcessTask(ctx, task)
	}))
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, stdin)
	server.Stop()
	drain()
	server.Shutdown()
	return json.NewEncoder(stdout).Encode(tally{Attempts: attempts.Load()})
}

// naively is what most asynq programs do today: call, and when the API says 429, come back
// when it says so.
func naively(config asynq.Config) asynq.Config {
	config.IsFailure = func(err error) bool {
		_, limited := errors.AsType[*throttle.RateLimitedError](err)
		return !limited
	}
	config.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if limited, ok := errors.AsType[*throttle.RateLimitedError](err); ok {
			return limited.RetryAfter
		}
		return asynq.DefaultRetryDelayFunc(n, err, task)
	}
	return config
}
