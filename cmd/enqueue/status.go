package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/hibiken/asynq"
)

const (
	statusAbout = `
enqueue status shows the queues with their tasks, how many of them are deferred
because a limit holds them back, and when the soonest of these comes back. With
-config it shows what is left of each limit, too. With -config and the ID of a task
it shows where that task is: in which waiting line, at which place, held by what, and
when it is expected to start. It changes nothing.`

	statusExamples = `
  enqueue status -redis redis://:password@redis:6379/0

  What is left of the quota of installation 42:
    enqueue status -config policies.yaml -attr installation=42

  Where is my task?
    enqueue status -config policies.yaml 6f1c0a52-5c1e-4b0e-9f53-0e0a7a5f4c11

  For a program:
    enqueue status -json -config policies.yaml | jq '.limits[] | select(.remaining == 0)'
`
)

// status is enqueue status.
type status struct {
	server

	attrs  pairs
	asJSON bool
	scan   int
	task   string
}

func (s *status) flags(fs *flag.FlagSet) {
	s.server.flags(fs, "to show what is left of its limits")
	s.attrs = pairs{separator: "="}
	fs.Var(&s.attrs, "attr", "show limits for this task attribute, `NAME=VALUE`; may be repeated\n(in the environment: one a line)")
	fs.BoolVar(&s.asJSON, "json", false, "write one JSON object instead of tables")
	fs.IntVar(&s.scan, "scan", 10_000, "look for deferred ones among the first `N` tasks of each queue and state")
}

func (s *status) check(positional []string) error {
	problems := []error{s.server.check()}
	switch {
	case len(positional) > 1:
		problems = append(problems, fmt.Errorf("unexpected argument %q; status shows one task at a time", positional[1]))
	case len(positional) == 1 && s.policies == "":
		problems = append(problems, fmt.Errorf("-config is missing; the policies say where task %q may stand in line", positional[0]))
	case len(positional) == 1:
		s.task = positional[0]
	}
	if s.scan < 1 {
		problems = append(problems, fmt.Errorf("-scan is %d; it must be at least 1", s.scan))
	}
	return errors.Join(problems...)
}

// report is what status shows. Its JSON names are read by programs.
type report struct {
	Redis  string        `json:"redis"`
	Time   time.Time     `json:"time"`
	Queues []queueReport `json:"queues"`
	Limits []limitReport `json:"limits,omitempty"`
}

func (s *status) run(ctx context.Context, st streams) error {
	session, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer session.close()
	if s.task != "" {
		tasks, err := readTasks(ctx, session, s.task)
		if err != nil {
			return fmt.Errorf("looking for the task: %w", err)
		}
		return printTasks(st.out, tasks, s.asJSON)
	}
	r := report{Redis: s.address, Time: time.Now().UTC()}
	if r.Queues, err = readQueues(ctx, asynq.NewInspectorFromRedisClient(session.rdb), s.scan); err != nil {
		return fmt.Errorf("reading the queues: %w", err)
	}
	if session.config != nil {
		if r.Limits, err = readLimits(ctx, session, s.attrs.values); err != nil {
			return fmt.Errorf("reading the limits: %w", err)
		}
	}
	if s.asJSON {
		return writeJSON(st.out, r)
	}
	return r.print(st.out)
}

func writeJSON(w io.Writer, report any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(report)
}
