package overhead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/worker"
)

// jobVariable makes a process of this program a worker: it holds the job.
const jobVariable = "RAMPMETER_OVERHEAD_JOB"

// job is what the worker process has to know.
type job struct {
	Redis       string `json:"redis"`
	Policies    string `json:"policies"` // the path of the file
	Concurrency int    `json:"concurrency"`
	// API is where each task makes a call; empty for tasks that do nothing.
	API        string `json:"api,omitempty"`
	CPUProfile string `json:"cpu_profile,omitempty"` // the path of the file
}

// order is what the worker process reads for each turn, and done its answer.
type (
	order struct {
		Kind  string `json:"kind"`
		Tasks int    `json:"tasks"`
	}
	done struct {
		// Took is from the server's start to the last task's end, CPU what this process
		// spent until the server had stopped.
		Took time.Duration `json:"took"`
		CPU  time.Duration `json:"cpu"`
	}
)

// IsWorker reports whether this process was started to be a worker.
func IsWorker(getenv func(string) string) bool { return getenv(jobVariable) != "" }

// Work is the worker process: it works off a queue for each order on stdin, until that
// or ctx ends. It returns the exit code.
func Work(ctx context.Context, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := work(ctx, getenv(jobVariable), stdin, stdout); err != nil {
		fmt.Fprintf(stderr, "worker: %v\n", err)
		return program.Failed
	}
	return program.OK
}

func work(ctx context.Context, text string, stdin io.Reader, stdout io.Writer) (err error) {
	j := &job{}
	if err := json.Unmarshal([]byte(text), j); err != nil {
		return fmt.Errorf("%s: %w", jobVariable, err)
	}
	connection, err := asynq.ParseRedisURI(j.Redis)
	if err != nil {
		return err
	}
	pace, err := worker.Open(connection, j.Policies)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pace.Close()) }()
	stopProfile, err := harness.StartProfile(j.CPUProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProfile()) }()

	ctx, orders := read(ctx, stdin)
	caller := newCaller(j)
	defer caller.http.CloseIdleConnections()
	server := &server{connection: connection, pace: pace, caller: caller}
	server.config = pace.Configure(asynq.Config{Concurrency: j.Concurrency, LogLevel: asynq.FatalLevel})
	for {
		select {
		case o := <-orders:
			d, err := server.workOff(ctx, o)
			if err != nil {
				return err
			}
			if err := json.NewEncoder(stdout).Encode(d); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// read reads orders from stdin. The returned context ends with that, or with ctx.
func read(ctx context.Context, stdin io.Reader) (context.Context, <-chan order) {
	ctx, cancel := context.WithCancel(ctx)
	orders := make(chan order, 1)
	go func() {
		defer cancel()
		lines := json.NewDecoder(stdin)
		for {
			var o order
			if lines.Decode(&o) != nil {
				return
			}
			orders <- o
		}
	}()
	return ctx, orders
}

// server is what the README tells the owner of an asynq program to write. It is started
// anew for each turn.
type server struct {
	connection asynq.RedisConnOpt
	pace       *worker.Middleware
	config     asynq.Config
	caller     *caller
}

// workOff runs as many tasks as the order says.
func (s *server) workOff(ctx context.Context, o order) (d done, err error) {
	var handled atomic.Int64
	ended := make(chan struct{})
	handler := s.pace.Wrap(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		err := s.caller.call(ctx)
		if handled.Add(1) == int64(o.Tasks) {
			close(ended)
		}
		return err
	}))
	before, err := cpuTime()
	if err != nil {
		return d, err
	}
	began := time.Now()
	turn := asynq.NewServer(s.connection, s.config)
	// What the server starts inherits the label, by which a profile tells the kinds apart.
	pprof.Do(ctx, pprof.Labels("kind", o.Kind), func(context.Context) { err = turn.Start(handler) })
	if err != nil {
		return d, err
	}
	select {
	case <-ended:
		d.Took = time.Since(began)
	case <-ctx.Done():
		err = ctx.Err()
	}
	turn.Shutdown()
	after, failed := cpuTime()
	d.CPU = after - before
	return d, errors.Join(err, failed)
}

// cpuTime is what this process has spent.
func cpuTime() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}

// caller does what a task is for: a call of somebody else's API.
type caller struct {
	api  string
	http *http.Client
}

func newCaller(j *job) *caller {
	transport := &http.Transport{MaxIdleConnsPerHost: j.Concurrency, MaxConnsPerHost: j.Concurrency}
	return &caller{api: j.API, http: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

func (c *caller) call(ctx context.Context) error {
	if c.api == "" {
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.api, nil)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}
