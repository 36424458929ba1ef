package main

import (
	"flag"
	"fmt"
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

func findCommand(name string) (command, bool) {
	for _, c := range commands() {
		if c.name == name {
			return c, true
		}
	}
	return command{}, false
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
	var b strings.Builder
	b.WriteString(helpBefore)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-9s %s\n", c.name, c.brief)
	}
	b.WriteString(helpAfter)
	b.WriteString(helpEnd)
	_, _ = io.WriteString(w, b.String())
}

// printHelp writes what -h shows. The flags come from the flag set itself, so
// that none is forgotten.
func (c command) printHelp(w io.Writer) {
	var b strings.Builder
	b.WriteString(strings.TrimSpace(c.about))
	fmt.Fprintf(&b, "\n\nUsage:\n\n  %s\n\nFlags, each with the environment variable that stands in for it:\n\n",
		strings.Join(strings.Fields("enqueue "+c.name+" [flags] "+c.usage), " "))
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	c.action().flags(fs)
	program.PrintFlags(&b, fs)
	fmt.Fprintf(&b, "\nExamples:\n\n%s", strings.Trim(c.examples, "\n"))
	b.WriteString("\n" + helpEnd)
	_, _ = io.WriteString(w, b.String())
}
