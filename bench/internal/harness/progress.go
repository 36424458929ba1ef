package harness

import (
	"fmt"
	"io"

	"github.com/rampmeter/rampmeter/internal/program"
)

// Progress tells on one line of a terminal what is being measured. It is silent
// where nobody watches.
type Progress struct {
	// Total is how many steps there are. Finished is how many of them are done.
	Total, Finished int

	w io.Writer // nil for silence
}

// NewProgress returns a Progress that writes to w if that is a terminal.
func NewProgress(w io.Writer) *Progress {
	if program.IsTerminal(w) {
		return &Progress{w: w}
	}
	return &Progress{}
}

// eraseLine moves to the start of the line and clears it.
const eraseLine = "\r\x1b[K"

// Show replaces the line.
func (p *Progress) Show(format string, args ...any) {
	if p.w != nil {
		fmt.Fprintf(p.w, eraseLine+"%3d %%  "+format, append([]any{100 * p.Finished / max(1, p.Total)}, args...)...)
	}
}

// Step shows what is next and counts it.
func (p *Progress) Step(format string, args ...any) {
	p.Show(format, args...)
	p.Finished++
}

// Clear wipes the line, for something else to be printed.
func (p *Progress) Clear() {
	if p.w != nil {
		fmt.Fprint(p.w, eraseLine)
	}
}
