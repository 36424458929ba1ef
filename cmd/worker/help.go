package main

import (
	"io"

	"github.com/rampmeter/rampmeter/internal/program"
)

const helpBefore = `worker runs the tasks of asynq queues at the pace their policies allow.

Any number of workers share the limits of one Redis. A task whose turn has not
come yet waits or is rescheduled; that costs it no retry.

Usage:

  worker -config FILE [-redis URI | -embedded] [flags]

Flags, each with the environment variable that stands in for it:

`

const helpAfter = `
Built-in task:

  http:request makes the HTTP call in its payload. 2xx: done. 429, and 503 with
  Retry-After: all workers leave the policy alone for that long, and the task is
  run again. Other 4xx: archived with the reason. 5xx and network errors: retried.

Examples:

  Try it out, with nothing installed:
    worker -config policies.yaml -embedded -listen :8080

  Serve two queues, one six times as often, and call nothing but one API:
    worker -config policies.yaml -redis redis://:password@redis:6379/0 \
      -queues critical=6,default=1 -allow-hosts api.github.com

  The same from the environment, as containers like it:
    RAMPMETER_CONFIG=policies.yaml RAMPMETER_QUEUES=critical=6,default=1 worker

Tasks that can not start in time:

  "overload: reject" or "drop" in a policy, and "max_defer: 10m", say what becomes of
  them. "overload: degrade" needs a handler to fall back on, which a program of your
  own can have and this one has not.

A policies file:

  policies:
    github:
      limits:
        - {name: hourly, algorithm: token_bucket, rate: 5000/1h, burst: 100}
  routes:
    - {task: "http:request", policy: github}

The file is watched: what it says is in force within a second of its being written,
for tasks that wait or stand in line, too. If it can not be used, that is logged, and the
policies in force stay. SIGHUP has it read at once.

SIGTERM and SIGINT end the worker in good order; a second one ends it at once.
Exit codes: 0 stopped in good order, 1 could not run, 2 wrong usage.
`

// printHelp writes what -h shows. The flags come from the flag set itself, so
// that none is forgotten.
func printHelp(w io.Writer) {
	_, _ = io.WriteString(w, helpBefore)
	program.PrintFlags(w, new(options).flags())
	_, _ = io.WriteString(w, helpAfter)
}
