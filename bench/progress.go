package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// progress tells on one line of a terminal what is being measured. It is silent
// where nobody watches.
type progress struct {
	w        io.Writer // nil for silence
	total    int
	finished int
}

func newProgress(w io.Writer) *progress {
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return &progress{w: w}
	}
	return &progress{}
}

// eraseLine moves to the start of the line and clears it.
const eraseLine = "\r\x1b[K"

func (p *progress) show(format string, args ...any) {
	if p.w != nil {
		fmt.Fprintf(p.w, eraseLine+"%3d %%  "+format, append([]any{100 * p.finished / max(1, p.total)}, args...)...)
	}
}

// step shows what is next and counts it.
func (p *progress) step(format string, args ...any) {
	p.show(format, args...)
	p.finished++
}

func (p *progress) done() {
	if p.w != nil {
		fmt.Fprint(p.w, eraseLine)
	}
}
