package backlog

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle"
)

// Work is a worker process: it says that it is ready, waits for a line on stdin,
// and works until stdin or ctx ends. It returns the exit code.
func Work(ctx context.Context, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	j, err := jobFrom(getenv)
	if err == nil {
		err = j.work(ctx, stdin, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "worker: %v\n", err)
		return program.Failed
	}
	return program.OK
}

func (j *job) work(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connection, err := asynq.ParseRedisURI(j.Redis)
	if err != nil {
		return err
	}
	tell := &teller{to: json.NewEncoder(stdout)}
	caller := newCaller(j)
	defer caller.http.CloseIdleConnections()
	server, err := j.open(connection, tell, caller)
	if err != nil {
		return err
	}
	defer tell.tell() // what came when the server had stopped
	defer server.stop()

	tell.say(word{Ready: true})
	lines := bufio.NewScanner(stdin)
	if !lines.Scan() {
		return nil // nobody wants it any more
	}
	go func() {
		for lines.Scan() {
		}
		cancel()
	}()
	if err := server.start(); err != nil {
		return err
	}
	tell.until(ctx)
	return nil
}

// workServer is an asynq server of some kind.
type workServer struct {
	start func() error
	stop  func()
}

// open makes the server that the job's kind asks for. It does not run yet.
func (j *job) open(connection asynq.RedisConnOpt, tell *teller, call asynq.Handler) (*workServer, error) {
	config := asynq.Config{
		Concurrency:              j.Concurrency,
		LogLevel:                 asynq.FatalLevel,
		DelayedTaskCheckInterval: j.Intervals.DelayedTaskCheck,
		TaskCheckInterval:        j.Intervals.TaskCheck,
	}
	switch j.Kind {
	case unlimited:
		return startPlain(connection, config, tell.counting(call)), nil
	case retryAfter:
		return j.openRetryAfter(connection, config, tell, call)
	case rampmeter:
		return j.openRampmeter(connection, config, tell, call)
	default:
		return nil, fmt.Errorf("this program has no workers of kind %q", j.Kind)
	}
}

func startPlain(connection asynq.RedisConnOpt, config asynq.Config, handler asynq.Handler) *workServer {
	server := asynq.NewServer(connection, config)
	return &workServer{
		start: func() error { return server.Start(handler) },
		stop:  server.Shutdown,
	}
}

// caller is the handler of every contender: one call of the API for each task.
type caller struct {
	api  string
	http *http.Client
}

func newCaller(j *job) *caller {
	transport := &http.Transport{MaxIdleConnsPerHost: j.Concurrency, MaxConnsPerHost: j.Concurrency}
	return &caller{api: j.API, http: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

// ProcessTask calls the API and tells it when the task started.
func (c *caller) ProcessTask(ctx context.Context, task *asynq.Task) error {
	query := url.Values{
		"task":   {string(task.Payload())},
		"tenant": {task.Headers()[tenantAttribute]},
		"began":  {strconv.FormatInt(time.Now().UnixMicro(), 10)},
	}
	if reservation, ok := throttle.FromContext(ctx); ok {
		query.Set("slot", strconv.FormatInt(reservation.At.UnixMicro(), 10))
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.api+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API answered %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// teller gathers what there is to tell and says it ten times a second.
type teller struct {
	to *json.Encoder

	mu   sync.Mutex
	next word
}

const tellEvery = 100 * time.Millisecond

// counting is a handler that counts its attempts.
func (t *teller) counting(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		number, err := strconv.Atoi(string(task.Payload()))
		if err != nil {
			return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
		}
		t.mu.Lock()
		t.next.Attempts = append(t.next.Attempts, number)
		t.mu.Unlock()
		defer func() {
			t.mu.Lock()
			t.next.Done++
			t.mu.Unlock()
		}()
		return next.ProcessTask(ctx, task)
	})
}

func (t *teller) until(ctx context.Context) {
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			t.tell()
		case <-ctx.Done():
			return
		}
	}
}

func (t *teller) tell() {
	t.mu.Lock()
	w := t.next
	t.next = word{}
	t.mu.Unlock()
	if len(w.Attempts) > 0 || w.Done > 0 {
		t.say(w)
	}
}

// say writes a word. Who can not be told has gone, and ends this process by that.
func (t *teller) say(w word) { _ = t.to.Encode(w) }
