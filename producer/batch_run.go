package producer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// callTimeout bounds the calls that a batch finishes although its context has
// ended, so that its summary is exact.
const callTimeout = 10 * time.Second

// batchRun is one batch under way: a feeder reads, workers enqueue, and the
// caller's goroutine alone collects what became of each line.
type batchRun struct {
	producer *Producer
	config   BatchConfig

	// The feeder's own until it has left.
	load      *Load
	given     int  // how many lines it has handed on
	exhausted bool // it came to its end by itself

	items    chan item
	outcomes chan outcome
	underway flights
	burst    burst

	// The collector's own.
	summary Summary
	bytes   int64
	done    frontier
	strict  StrictError
	stopped error
}

// outcome is what became of a line, or of reading the next one.
type outcome struct {
	item

	err    error // why it is not enqueued
	read   bool  // err is about reading the input
	parked bool  // it is in line
}

func newBatchRun(p *Producer, config BatchConfig) *batchRun {
	return &batchRun{
		producer: p, config: config, load: NewLoad(config.Config),
		items: make(chan item), outcomes: make(chan outcome),
	}
}

func (b *batchRun) run(ctx context.Context, from source) (Summary, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	// The feeder may be stuck in a Read that nothing ends, so nobody waits for it:
	// it leaves at the first thing it does after running has ended.
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		b.feed(running, from)
	}()
	finished := b.startWorkers(running)
	for collecting := true; collecting; {
		select {
		case result := <-b.outcomes:
			b.collect(result, stop)
		case <-finished:
			collecting = false
		}
	}
	return b.end(ctx, fed)
}

// feed reads to the end of the input, or to the first bad line of a strict batch.
func (b *batchRun) feed(running context.Context, from source) {
	defer close(b.items)
	for running.Err() == nil {
		next, err := from.next(b.load)
		switch {
		case errors.Is(err, io.EOF):
			b.exhausted = true
			return
		case err != nil:
			b.tell(running, outcome{err: err, read: true})
			return
		}
		b.given++
		if next.bad != nil {
			b.tell(running, outcome{item: next, err: next.bad})
			if b.config.Strict {
				b.exhausted = true
				return
			}
			continue
		}
		// Of two lines with one ID the first is to win, and so must not be overtaken.
		b.underway.begin(&next.entry)
		select {
		case b.items <- next:
		case <-running.Done():
		}
	}
}

func (b *batchRun) tell(running context.Context, result outcome) {
	select {
	case b.outcomes <- result:
	case <-running.Done():
	}
}

// startWorkers returns a channel that is closed when all workers have left.
func (b *batchRun) startWorkers(running context.Context) <-chan struct{} {
	var workers sync.WaitGroup
	for range b.config.Workers {
		workers.Go(func() {
			for {
				select {
				case next, more := <-b.items:
					if !more {
						return
					}
					b.handle(running, next)
				case <-running.Done():
					return
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() {
		workers.Wait()
		close(finished)
	}()
	return finished
}

func (b *batchRun) handle(running context.Context, next item) {
	if running.Err() != nil {
		b.underway.end(&next.entry) // the feeder may wait for it
		return
	}
	parked, err := b.enqueue(running, &next.entry)
	b.underway.end(&next.entry)
	b.outcomes <- outcome{item: next, err: err, parked: parked}
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

func (b *batchRun) collect(result outcome, stop context.CancelFunc) {
	switch {
	case result.read:
		b.stopped = fmt.Errorf("reading the input: %w", result.err)
		return
	case result.bad != nil:
		problem := &LineError{Line: result.line, Err: result.bad}
		b.summary.Bad++
		if b.strict.First == nil {
			b.strict.First = problem
		}
		b.config.Report(problem)
	case AlreadyThere(result.err):
		b.summary.AlreadyThere++
		b.config.Report(&LineError{Line: result.line, Err: result.err})
	case result.err != nil:
		if b.stopped == nil {
			b.stopped = result.err
		}
		stop()
		return
	default:
		b.summary.Enqueued++
		if result.parked {
			b.summary.Parked++
		}
	}
	b.done.add(result.item, result.err == nil)
	b.bytes = max(b.bytes, result.end)
	b.config.Progress(Progress{Summary: b.summary, Bytes: b.bytes})
}

// end puts together the answer once no worker is at work any more.
func (b *batchRun) end(ctx context.Context, fed <-chan struct{}) (Summary, error) {
	complete := false
	if b.stopped == nil && ctx.Err() == nil {
		<-fed // the workers left because the feeder did
		complete = true
	} else {
		select {
		case <-fed:
			complete = b.stopped == nil && b.exhausted && b.done.next == b.given
		default:
		}
	}
	switch {
	case !complete:
		if b.stopped == nil {
			b.stopped = context.Cause(ctx)
		}
		return b.summary, &StoppedError{
			Line: max(b.done.last+1, b.config.From), Ahead: b.done.aheadLines(),
			Enqueued: b.summary.Enqueued, Err: b.stopped,
		}
	case b.config.Strict && b.summary.Bad > 0:
		b.strict.Bad, b.strict.Enqueued = b.summary.Bad, b.summary.Enqueued
		return b.summary, &b.strict
	}
	if estimate, ok := b.load.Estimate(); ok {
		b.summary.Estimate = &estimate
	}
	return b.summary, nil
}
