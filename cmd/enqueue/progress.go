package main

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/rampmeter/rampmeter/internal/program"
)

// bar is a progress bar on a terminal, and nothing anywhere else.
type bar struct{ on *progressbar.ProgressBar }

// newBar returns a bar up to total; -1 makes it a spinner. The total is in bytes
// or in whatever unit says.
func newBar(w io.Writer, unit string, total int64, bytes bool) *bar {
	if !program.IsTerminal(w) || total == 1 {
		return &bar{}
	}
	return &bar{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription("enqueueing"),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionSetItsString(unit),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)}
}

// set moves the bar. An error would be one of writing to the terminal.
func (b *bar) set(done int64) {
	if b.on != nil {
		_ = b.on.Set64(done)
	}
}

// clear takes the bar away for a line of text; it comes back with the next set.
func (b *bar) clear() {
	if b.on != nil {
		_ = b.on.Clear()
	}
}

// close takes the bar away for good.
func (b *bar) close() {
	if b.on != nil {
		_ = b.on.Finish()
		b.on = nil
	}
}
