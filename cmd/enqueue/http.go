package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/worker/httprequest"
)

const (
	httpAbout = `
enqueue http enqueues a task of the type http:request: a worker makes the call as
soon as the quota allows. With -count it enqueues many of them. Calls that would have
to wait are put into their policy's line straight away if -config names the policies;
asynq has them as scheduled meanwhile.`

	httpExamples = `
  One call, for one tenant:
    enqueue http -attr installation=42 https://api.example.com/users/7

  One that goes ahead of the others, and may use what limits keep for such tasks:
    enqueue http -attr installation=42 -attr priority=high https://api.example.com/users/7

  A POST that is there once, however often this is run:
    enqueue http -method POST -header 'Content-Type: application/json' \
      -body '{"name":"x"}' -id create-x https://api.example.com/things

  Five hundred calls, and how long the quota makes them take:
    enqueue http -count 500 -config policies.yaml http://127.0.0.1:8080/
`
)

// httpCall is enqueue http.
type httpCall struct {
	server

	request  httprequest.Payload
	headers  pairs
	attrs    pairs
	entry    producer.Entry
	maxRetry int
	count    int
}

func (h *httpCall) flags(fs *flag.FlagSet) {
	h.server.flags(fs, "to put calls into line that would have to wait,\nto refuse those that can never pass, and to tell how long the quota makes them take")
	h.attrs = pairs{separator: "="}
	h.headers = pairs{separator: ":"}
	fs.StringVar(&h.request.Method, "method", "GET", "HTTP `METHOD`")
	fs.Var(&h.headers, "header", "request header `NAME:VALUE`; may be repeated (in the environment: one a line)")
	fs.StringVar(&h.request.Body, "body", "", "`TEXT` to send as the request's body")
	fs.Var(&h.attrs, "attr", "task attribute `NAME=VALUE` that limits look at; may be repeated\n(in the environment: one a line)")
	fs.StringVar(&h.entry.Queue, "queue", "default", "`QUEUE` to put the task into")
	fs.StringVar(&h.entry.ID, "id", "", "task `ID`; while a task of this ID is in the queue, no other is enqueued")
	fs.IntVar(&h.count, "count", 1, "enqueue `N` tasks alike")
	fs.IntVar(&h.maxRetry, "max-retry", 25, "try again at most `N` times after a failure; being throttled costs none")
	fs.DurationVar(&h.entry.Timeout, "timeout", 0, "most `TIME` for one run, in whole seconds; default 30m")
	fs.DurationVar(&h.entry.ProcessIn, "process-in", 0, "`TIME` to wait before the task may run")
	fs.DurationVar(&h.entry.Retention, "retention", 0, "`TIME` to keep the finished task readable, in whole seconds")
}

func (h *httpCall) check(positional []string) error {
	address, err := one(positional, "no URL; name the one to call")
	problems := []error{err, h.server.check()}
	if h.count < 1 {
		problems = append(problems, fmt.Errorf("-count is %d; it must be at least 1", h.count))
	}
	if h.count > 1 && h.entry.ID != "" {
		problems = append(problems, fmt.Errorf("-id names one task, but -count asks for %d; leave one of them out", h.count))
	}
	if err == nil {
		h.request.URL, h.request.Headers = address, h.headers.values
		h.entry.Type, h.entry.Attributes, h.entry.MaxRetry = httprequest.TaskType, h.attrs.values, &h.maxRetry
		if h.entry.Payload, err = h.request.Encode(); err == nil {
			err = h.entry.Validate()
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (h *httpCall) run(ctx context.Context, s streams) error {
	session, err := h.open(ctx)
	if err != nil {
		return err
	}
	defer session.close()

	p, err := session.producer()
	if err != nil {
		return err
	}
	defer p.Close()
	bar := newBar(s.err, "tasks", int64(h.count), false)
	summary, err := p.Repeat(ctx, h.entry, h.count, producer.BatchConfig{
		Config: session.config, Strict: true,
		Progress: func(p producer.Progress) { _ = bar.Set(p.Enqueued) },
	})
	_ = bar.Finish()
	if refused, ok := errors.AsType[*producer.StrictError](err); ok {
		return fmt.Errorf("nothing was enqueued: %w", refused.First.Err)
	}
	if summary.AlreadyThere > 0 {
		say(s.out, "task %q is in queue %q already, nothing was enqueued", h.entry.ID, h.entry.Queue)
		return nil
	}
	if summary.Enqueued > 0 {
		say(s.out, "%s enqueued in queue %q%s", program.Counted(summary.Enqueued, "task"), h.entry.Queue, rest(summary))
	}
	if stopped, ok := errors.AsType[*producer.StoppedError](err); ok {
		return fmt.Errorf("stopped with %d of %s left: %w", h.count-summary.Enqueued, program.Counted(h.count, "task"), interruption(ctx, stopped.Err))
	}
	sayEstimate(s.out, summary.Estimate, session.config)
	return err
}

// interruption says in plain words that a context ended.
func interruption(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// inAbout writes a duration as people say it: the two largest units.
func inAbout(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= 10*time.Second:
		return d.Round(time.Second).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
