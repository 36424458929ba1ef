package producer

import (
	"errors"
	"fmt"
	"io"
	"iter"
)

// item is one line of a batch on its way.
type item struct {
	line  int
	end   int64 // bytes of input up to and with this line
	entry Entry
	bad   error // why the line is no task

	// What became of it, once settled is closed.
	settled chan struct{}
	skipped bool  // the batch had ended before its turn
	err     error // why it is not enqueued
	parked  bool  // it is in line
}

// source is the lines of a batch one after another, counted into its load. An error is of
// reading the input, and the last there is.
type source = iter.Seq2[*item, error]

// linesOf reads entries from the lines of r, from the one of that number on.
func linesOf(r io.Reader, config BatchConfig, load *Load) source {
	return func(yield func(*item, error) bool) {
		lines := newLineReader(r, config.MaxLine)
		for {
			current, err := lines.next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(nil, fmt.Errorf("reading the input: %w", err))
				}
				return
			}
			if current.number < config.From {
				continue
			}
			next := &item{line: current.number, end: current.end, bad: current.err}
			if next.bad == nil {
				next.entry, next.bad = ParseEntry(current.text)
			}
			if next.bad == nil {
				next.bad = load.Add(next.entry.Type, next.entry.Attributes)
			}
			if !yield(next, nil) {
				return
			}
		}
	}
}

// copiesOf gives the same entry n times.
func copiesOf(entry Entry, n int, load *Load) source {
	return func(yield func(*item, error) bool) {
		for i := range n {
			next := &item{line: i + 1, entry: entry, bad: entry.Validate()}
			if next.bad == nil {
				next.bad = load.Add(entry.Type, entry.Attributes)
			}
			if !yield(next, nil) {
				return
			}
		}
	}
}
