package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// callTimeout bounds the calls that a batch finishes although its context has
// ended, so that its summary is exact.
const callTimeout = 10 * time.Second

// batchRun is one batch under way: a feeder reads and begins a call for each line, and the
// caller's goroutine collects what became of them, in the order of the lines.
type batchRun struct {
	producer *Producer
	config   BatchConfig
	load     *Load

	items     chan *item    // in order; closed when the feeder has left
	room      chan struct{} // has something for each call under way
	burst     burst
	underway  []*item // the feeder's: those with an ID, until they are settled
	exhausted bool    // the feeder came to its end by itself
	unread    error   // why the feeder could not read on

	// The collector's own.
	summary  Summary
	last     int   // every line up to this one is dealt with
	ahead    []int // later lines whose tasks went in
	gap      bool  // the line after last is not dealt with
	firstBad *LineError
	stopped  error
}

// mostAhead is how many lines, for each worker, may be done before an earlier one is.
const mostAhead = 4

func newBatchRun(p *Producer, config BatchConfig, load *Load) *batchRun {
	return &batchRun{
		producer: p, config: config, load: load,
		items: make(chan *item, mostAhead*config.Workers), room: make(chan struct{}, config.Workers),
	}
}

func (b *batchRun) run(ctx context.Context, from source) (Summary, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	go b.feed(running, stop, from)
	complete := b.collectAll(running)
	switch {
	case !complete:
		return b.summary, &StoppedError{
			Line: max(b.last+1, b.config.From), Ahead: b.ahead,
			Enqueued: b.summary.Enqueued, Err: cmp.Or(b.stopped, context.Cause(ctx)),
		}
	case b.config.Strict && b.summary.Bad > 0:
		return b.summary, &StrictError{First: b.firstBad, Bad: b.summary.Bad, Enqueued: b.summary.Enqueued}
	}
	if estimate, ok := b.load.Estimate(); ok {
		b.summary.Estimate = &estimate
	}
	return b.summary, nil
}

// feed reads to the end of the input, or to the first bad line of a strict batch. It may
// be stuck in a read that nothing ends, so nobody waits for it: it leaves at the first
// thing it does after running has ended. What it has handed on, it settles.
func (b *batchRun) feed(running context.Context, stop context.CancelFunc, from source) {
	defer close(b.items)
	for next, err := range from {
		if err != nil || running.Err() != nil {
			b.unread = err
			return
		}
		next.settled = make(chan struct{})
		select {
		case b.items <- next:
		case <-running.Done():
			return
		}
		if next.bad == nil {
			b.begin(running, stop, next)
			continue
		}
		close(next.settled)
		if b.config.Strict {
			break
		}
	}
	b.exhausted = true
}

// begin enqueues an item in the background, as soon as there is room for it. Of two with
// one ID the first is to win, and so must not be overtaken.
func (b *batchRun) begin(running context.Context, stop context.CancelFunc, next *item) {
	if next.entry.ID != "" {
		b.underway = slices.DeleteFunc(b.underway, func(before *item) bool {
			if before.entry.ID == next.entry.ID {
				<-before.settled // no longer than a call takes
			}
			return isClosed(before.settled)
		})
		b.underway = append(b.underway, next)
	}
	b.room <- struct{}{}
	go func() {
		defer close(next.settled)
		defer func() { <-b.room }()
		if next.skipped = running.Err() != nil; next.skipped {
			return
		}
		next.parked, next.err = b.enqueue(running, &next.entry)
		if next.err != nil && !AlreadyThere(next.err) {
			stop()
		}
	}()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// enqueue goes on when running ends: giving up half-way would leave open
// whether the task is in.
func (b *batchRun) enqueue(running context.Context, entry *Entry) (parked bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(running), callTimeout)
	defer cancel()
	_, parked, err = b.producer.enqueue(ctx, entry.Task(), nil, &b.burst)
	if entry.ID == "" && errors.Is(err, asynq.ErrTaskIDConflict) {
		// A random ID is taken only by ourselves: the client's first try went
		// through, its answer was lost and the client tried again.
		return parked, nil
	}
	return parked, err
}

// collectAll collects until the feeder has left, or running has ended and nothing is under
// way. It reports whether everything is dealt with.
func (b *batchRun) collectAll(running context.Context) (complete bool) {
	for {
		var next *item
		var more bool
		select {
		case next, more = <-b.items:
		case <-running.Done():
			select {
			case next, more = <-b.items:
			default: // the feeder begins nothing any more
				return false
			}
		}
		if !more {
			b.stopped = cmp.Or(b.stopped, b.unread)
			return b.exhausted && !b.gap
		}
		<-next.settled
		b.collect(next)
	}
}

func (b *batchRun) collect(next *item) {
	enqueued := false
	switch {
	case next.bad != nil:
		problem := &LineError{Line: next.line, Err: next.bad}
		b.summary.Bad++
		b.firstBad = cmp.Or(b.firstBad, problem)
		b.config.Report(problem)
	case AlreadyThere(next.err):
		b.summary.AlreadyThere++
		b.config.Report(&LineError{Line: next.line, Err: next.err})
	case next.skipped || next.err != nil:
		b.gap = true
		b.stopped = cmp.Or(b.stopped, next.err)
		return
	default:
		enqueued = true
		b.summary.Enqueued++
		if next.parked {
			b.summary.Parked++
		}
	}
	switch {
	case !b.gap:
		b.last = next.line
	case enqueued:
		b.ahead = append(b.ahead, next.line)
	}
	b.config.Progress(Progress{Summary: b.summary, Bytes: next.end})
}

// lineList names lines as in "line 7" or "lines 7, 9, 12".
func lineList(lines []int) string {
	if len(lines) == 1 {
		return fmt.Sprintf("line %d", lines[0])
	}
	return "lines " + strings.Trim(strings.ReplaceAll(fmt.Sprint(lines), " ", ", "), "[]")
}
