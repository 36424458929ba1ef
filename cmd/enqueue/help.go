package main

import (
	"flag"
	"io"
	"strings"

	"github.com/rampmeter/rampmeter/internal/program"
)

// command is one of the things that enqueue can do.
type command struct {
	name, usage, brief string
	about, examples    string
	action             func() action
}

func commands() []command {
	return []command{
		{"http", "URL", "enqueue one HTTP call, or many alike", httpAbout, httpExamples, func() action { return new(httpCall) }},
		{"batch", "FILE.ndjson|-", "enqueue a task for each line of a file or of standard input", batchAbout, batchExamples, func() action { return new(batchFile) }},
		{"status", "[TASK-ID]", "show queues, deferred tasks, and what is left of the limits", statusAbout, statusExamples, func() action { return new(status) }},
		{"freeze", "POLICY TIME", "close a policy, or one key of a limit, for every worker", freezeAbout, freezeExamples, func() action { return new(freeze) }},
		{"unfreeze", "POLICY", "open what was closed", unfreezeAbout, unfreezeExamples, func() action { return &freeze{thaw: true} }},
		{"schedule", "FILE.yaml", "enqueue tasks again and again, by cron expressions", scheduleAbout, scheduleExamples, func() action { return new(scheduleFile) }},
	}
}

func commandNames() string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

const (
	helpBefore = `enqueue puts tasks into asynq queues for workers that Rampmeter paces.

Usage:

  enqueue COMMAND [flags] [arguments]

Commands:

`
	helpAfter = `
Run 'enqueue COMMAND -h' for a command's flags and examples.

Flags and arguments come in any order. Each flag has an environment variable,
RAMPMETER_REDIS for -redis and so on; the flag wins.
`
	helpEnd = `
Exit codes: 0 done, 1 failed or stopped half-way, 2 wrong usage.
`
)

func printHelp(w io.Writer) {
	_, _ = io.WriteString(w, helpBefore)
	for _, c := range commands() {
		say(w, "  %-9s %s", c.name, c.brief)
	}
	_, _ = io.WriteString(w, helpAfter+helpEnd)
}

// printHelp writes what -h shows. The flags come from the flag set itself, so
// that none is forgotten.
func (c command) printHelp(w io.Writer) {
	say(w, "%s\n\nUsage:\n\n  %s\n\nFlags, each with the environment variable that stands in for it:\n",
		strings.TrimSpace(c.about), strings.Join(strings.Fields("enqueue "+c.name+" [flags] "+c.usage), " "))
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	c.action().flags(fs)
	program.PrintFlags(w, fs)
	say(w, "\nExamples:\n\n%s\n%s", strings.Trim(c.examples, "\n"), strings.TrimSuffix(helpEnd, "\n"))
}
