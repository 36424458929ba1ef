package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// The defaults of a BatchConfig.
const (
	DefaultWorkers = 16
	DefaultMaxLine = 1 << 20 // bytes
)

// BatchConfig says how a batch is enqueued. The zero value is a good one.
type BatchConfig struct {
	// Workers is how many tasks are enqueued at once, each over a connection of
	// its own; DefaultWorkers when zero. Tasks go in in the order of their lines,
	// except that neighbours among so many may overtake each other, unless they
	// have the same ID; with one worker the order is exact.
	Workers int
	// MaxLine is the longest line in bytes; DefaultMaxLine when zero. A longer
	// line is a bad line.
	MaxLine int
	// From is the number of the first line to enqueue, to go on with a batch that
	// stopped. Lines before it are not looked at. Zero means all.
	From int
	// Strict makes bad lines fatal. An input that can be read twice (an
	// io.Seeker: a file) is checked as a whole first, so that nothing goes in when
	// any line is bad. Of a pipe the lines before the first bad one go in.
	Strict bool
	// Config makes lines bad whose tasks could never pass its limits, and gives
	// the summary its estimate. May be nil.
	Config *policy.Config
	// Report, if set, is told of each line that became no new task. Calls come one
	// at a time, in the order of the lines.
	Report func(*LineError)
	// Progress, if set, is called after every line, in the same way.
	Progress func(Progress)
}

func (c BatchConfig) withDefaults() BatchConfig {
	if c.Workers <= 0 {
		c.Workers = DefaultWorkers
	}
	if c.MaxLine <= 0 {
		c.MaxLine = DefaultMaxLine
	}
	if c.Report == nil {
		c.Report = func(*LineError) {}
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	return c
}

// Summary is what became of a batch.
type Summary struct {
	// Enqueued tasks are new; AlreadyThere lines named a task that was in the
	// queue before; Bad lines describe no task.
	Enqueued, AlreadyThere, Bad int
	// Parked is how many of those that were Enqueued were put into line; see
	// [FromConfig].
	Parked int
	// Estimate is how long the quota makes the batch take, lines that were there
	// already included. Nil without a Config.
	Estimate *Estimate
}

// Progress is how far a batch has come.
type Progress struct {
	Summary

	// Bytes is how much of the input is done.
	Bytes int64
}

// LineError says why a line became no new task. AlreadyThere tells a task that
// is in the queue already from a bad line.
type LineError struct {
	Line int // from 1
	Err  error
}

// Error names line and reason.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns the reason: FieldErrors for a line that is no entry, an
// [*policy.AttributeError] or [*policy.NeverError] for a task that could
// never run, [asynq.ErrTaskIDConflict] or [asynq.ErrDuplicateTask] for one
// that is there already.
func (e *LineError) Unwrap() error { return e.Err }

// StrictError says that a strict batch met a bad line.
type StrictError struct {
	// First is the first bad line; Bad is how many there are as far as the input
	// was read.
	First *LineError
	Bad   int
	// Enqueued is how many tasks had gone in: none when the input was checked
	// beforehand.
	Enqueued int
}

// Error says what is wrong and what went in all the same.
func (e *StrictError) Error() string {
	if e.Enqueued == 0 {
		return fmt.Sprintf("nothing was enqueued, because of %s: %v", plural(e.Bad, "bad line"), e.First)
	}
	return fmt.Sprintf("stopped at a bad line after %s had gone in: %v", plural(e.Enqueued, "task"), e.First)
}

// Unwrap returns the first bad line.
func (e *StrictError) Unwrap() error { return e.First }

// StoppedError says that a batch ended before its input did: Redis failed, the
// input could not be read, or the context ended.
type StoppedError struct {
	// Line is where to go on: every line before it is dealt with. Its own task may
	// have gone in, too, if Redis failed after taking it; an id makes that safe.
	Line int
	// Ahead are the later lines whose tasks went in all the same, because several
	// lines are under way at once. Going on at Line enqueues them again, unless
	// they have an id.
	Ahead []int
	// Enqueued is how many tasks went in, those of Ahead included.
	Enqueued int
	// Err is why.
	Err error
}

// Error says how many tasks went in, where it stopped and why.
func (e *StoppedError) Error() string {
	ahead := ""
	if len(e.Ahead) > 0 {
		ahead = fmt.Sprintf(" (%s went in, too)", lineList(e.Ahead))
	}
	return fmt.Sprintf("stopped at line %d%s after %s had gone in: %v", e.Line, ahead, plural(e.Enqueued, "task"), e.Err)
}

// Unwrap returns why the batch stopped.
func (e *StoppedError) Unwrap() error { return e.Err }

// Batch enqueues a task for each line of r, which holds one JSON object a line
// as ParseEntry reads it. Blank lines are skipped. Bad lines and tasks that are
// there already are reported and counted; they end nothing, unless
// [BatchConfig.Strict] is set.
//
// The error is a [*StrictError] or a [*StoppedError]; the Summary is right in
// any case. When ctx ends, calls under way are finished, for ten seconds at most,
// and Batch returns, even if a Read of r is still blocked: that Read then ends
// with r.
func (p *Producer) Batch(ctx context.Context, r io.Reader, config BatchConfig) (Summary, error) {
	config = config.withDefaults()
	if config.Strict {
		if err := checkAll(ctx, r, config); err != nil {
			if bad, ok := errors.AsType[*StrictError](err); ok {
				return Summary{Bad: bad.Bad}, err
			}
			return Summary{}, &StoppedError{Line: max(config.From, 1), Err: err}
		}
	}
	load := NewLoad(config.Config)
	return newBatchRun(p, config, load).run(ctx, linesOf(r, config, load))
}

// Repeat enqueues n tasks of one entry, as a batch of n such lines would be.
func (p *Producer) Repeat(ctx context.Context, entry Entry, n int, config BatchConfig) (Summary, error) {
	config = config.withDefaults()
	load := NewLoad(config.Config)
	return newBatchRun(p, config, load).run(ctx, copiesOf(entry, n, load))
}

// checkAll reads an input that can be read again to its end, reports its bad
// lines and goes back to where it was. For other inputs it does nothing.
func checkAll(ctx context.Context, r io.Reader, config BatchConfig) error {
	seeker, ok := r.(io.Seeker)
	if !ok {
		return nil
	}
	start, err := seeker.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil // a pipe, which is an os.File, too
	}
	var bad StrictError
	for next, err := range linesOf(r, config, NewLoad(config.Config)) {
		if err := cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if next.bad != nil {
			problem := &LineError{Line: next.line, Err: next.bad}
			config.Report(problem)
			if bad.Bad++; bad.First == nil {
				bad.First = problem
			}
		}
	}
	if bad.Bad > 0 {
		return &bad
	}
	if _, err := seeker.Seek(start, io.SeekStart); err != nil {
		return fmt.Errorf("going back to the start of the input: %w", err)
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
