package main

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/rampmeter/rampmeter/internal/program"
)

// newBar returns a progress bar up to total, which only a terminal shows; -1 makes it a
// spinner. The total is in bytes or in whatever unit says. An error of the bar would be one
// of writing to the terminal.
func newBar(w io.Writer, unit string, total int64, bytes bool) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetVisibility(program.IsTerminal(w) && total != 1),
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription("enqueueing"),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionSetItsString(unit),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}
