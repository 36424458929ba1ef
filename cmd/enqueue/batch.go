package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/producer"
)

const (
	batchAbout = `
enqueue batch reads one JSON object a line and enqueues a task for each:

  {"url":"https://api.example.com/users/7","attributes":{"installation":"42"}}
  {"type":"email:send","payload":{"to":"a@example.com"},"queue":"mail","id":"mail-7"}

A line with url is short for a task of the type http:request and may have method,
headers and body. Every line may have attributes, queue, id, max_retry, timeout,
deadline, process_at or process_in, unique and retention; times are written like
"2030-01-02T15:04:05Z", durations like "30s". Blank lines are skipped.

Bad lines are reported with their number and left out. With -strict they are
fatal: nothing of a file is enqueued when any of its lines is bad; standard input
is read once, so there the lines before the first bad one go in.

Tasks go in in the order of their lines, except that neighbours may overtake each
other; -workers 1 keeps the exact order. Of lines with one id the first goes in; a
task whose id is in the queue already is reported and not enqueued again. When Redis
fails half-way, the message says which line to go on with: see -from.

Tasks that would have to wait are put into their policy's line straight away if
-config names the policies; asynq has them as scheduled meanwhile.`

	batchExamples = `
  enqueue batch -redis redis://:password@redis:6379/0 tasks.ndjson

  All or nothing, and how long the quota makes them take:
    enqueue batch -strict -config policies.yaml tasks.ndjson

  From another program:
    jq -c '{url: .href, id: .sha}' commits.json | enqueue batch -
`
)

// batchFile is enqueue batch.
type batchFile struct {
	server

	path   string
	config producer.BatchConfig
}

func (b *batchFile) flags(fs *flag.FlagSet) {
	b.server.flags(fs, "to put tasks into line that would have to wait,\nto find lines whose tasks could never pass, and to tell how long the quota makes the\nbatch take")
	fs.BoolVar(&b.config.Strict, "strict", false, "enqueue nothing when a line of a file is bad; stop there when reading\nstandard input")
	fs.IntVar(&b.config.From, "from", 1, "first `LINE` to enqueue, to go on with a batch that stopped")
	fs.IntVar(&b.config.Workers, "workers", producer.DefaultWorkers, "enqueue `N` lines at once")
	fs.IntVar(&b.config.MaxLine, "max-line", producer.DefaultMaxLine, "longest line, in `BYTES`; a longer one is a bad line")
}

func (b *batchFile) check(positional []string) error {
	var err error
	b.path, err = one(positional, "no file; name one with a task a line, or - for standard input")
	problems := []error{err, b.server.check()}
	for _, f := range []struct {
		name  string
		value int
	}{{"from", b.config.From}, {"workers", b.config.Workers}, {"max-line", b.config.MaxLine}} {
		if f.value < 1 {
			problems = append(problems, fmt.Errorf("-%s is %d; it must be at least 1", f.name, f.value))
		}
	}
	return errors.Join(problems...)
}

func (b *batchFile) run(ctx context.Context, s streams) error {
	input, size, err := b.input(s.in)
	if err != nil {
		return err
	}
	defer input.Close()
	session, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer session.close()

	p, err := session.producer()
	if err != nil {
		return err
	}
	defer p.Close()
	bar := newBar(s.err, "bytes", size, true)
	complaints := complaints{w: s.err, bar: bar}
	b.config.Config = session.config
	b.config.Report = complaints.add
	b.config.Progress = func(p producer.Progress) { _ = bar.Set64(p.Bytes) }
	summary, err := p.Batch(ctx, input, b.config)
	_ = bar.Finish()
	complaints.finish()

	say(s.out, "%s enqueued%s", program.Counted(summary.Enqueued, "task"), rest(summary))
	if err != nil {
		return b.ended(ctx, err)
	}
	sayEstimate(s.out, summary.Estimate, session.config)
	if summary.Bad > 0 && summary.Enqueued+summary.AlreadyThere == 0 {
		return errors.New("no line is a task")
	}
	return nil
}

// input returns the input and its size in bytes, -1 for what has none.
func (b *batchFile) input(stdin io.Reader) (io.ReadCloser, int64, error) {
	if b.path == "-" {
		// Not ours to close, nor to read twice even where it is a file: whoever pipes does
		// not expect that.
		return io.NopCloser(stdin), -1, nil
	}
	file, err := os.Open(b.path)
	if err != nil {
		return nil, 0, err // os says "open FILE: no such file or directory"
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory; name a file with a task a line", b.path)
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return file, -1, nil // a named pipe, say
	}
	return file, info.Size(), nil
}

// ended says how to go on.
func (b *batchFile) ended(ctx context.Context, err error) error {
	stopped, ok := errors.AsType[*producer.StoppedError](err)
	if !ok {
		return err
	}
	plain := *stopped
	plain.Err = interruption(ctx, stopped.Err)
	if b.path == "-" {
		return fmt.Errorf("%w\nTo go on, give it the input again with -from %d", &plain, plain.Line)
	}
	return fmt.Errorf("%w\nTo go on: enqueue batch -from %d %s", &plain, plain.Line, b.path)
}

// rest says where the new tasks are, and what became of the other lines.
func rest(summary producer.Summary) string {
	var parts []string
	if summary.Parked > 0 {
		parts = append(parts, fmt.Sprintf("%d of them in line", summary.Parked))
	}
	if summary.AlreadyThere > 0 {
		parts = append(parts, fmt.Sprintf("%d already there", summary.AlreadyThere))
	}
	if summary.Bad > 0 {
		parts = append(parts, program.Counted(summary.Bad, "bad line"))
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}
