package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// NewTable aligns cells to the right.
func NewTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// Padded makes the first cells of all rows start at the left.
func Padded(name string) string { return fmt.Sprintf("%-22s", name) }

// Latency rounds to what can be told apart at a glance.
func Latency(d time.Duration) string {
	switch {
	case d < 100*time.Microsecond:
		return d.Round(100 * time.Nanosecond).String()
	case d < 100*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// WriteJSON writes a report for a program to read.
func WriteJSON(w io.Writer, report any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
