package backlog

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
)

// writeHead prints what holds for all tables.
func (r *report) writeHead(w io.Writer) error {
	_, err := fmt.Fprintf(w, "Redis %s; %s with %s each; medians of %s.\n", r.Redis,
		program.Counted(r.Workers, "worker"), program.Counted(r.Concurrency, "task"), program.Counted(r.Rounds, "turn"))
	return err
}

// writeText prints the scenario's table, with the columns that have a figure in it.
func (s *section) writeText(w io.Writer) error {
	var text bytes.Buffer
	s.write(&text)
	_, err := text.WriteTo(w)
	return err
}

func (s *section) write(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s, %d tasks at %s, %.1f s at best\n", s.Name, s.About, s.Tasks, s.Limit, s.Ideal)
	columns := slices.DeleteFunc(slices.Clone(metrics), func(m metric) bool {
		return m.heading == "" || !slices.ContainsFunc(s.Results, func(r *result) bool {
			_, ok := r.Figures[m.name]
			return ok
		})
	})
	table := harness.NewTable(w)
	for _, m := range columns {
		fmt.Fprintf(table, "\t%s", m.heading)
	}
	fmt.Fprintln(table, "\t")
	for _, r := range s.Results {
		fmt.Fprint(table, harness.Padded(r.Name))
		for _, m := range columns {
			cell := "-"
			if figure, ok := r.Figures[m.name]; ok {
				cell = m.text(figure)
			}
			fmt.Fprintf(table, "\t%s", cell)
		}
		fmt.Fprintln(table, "\t")
	}
	_ = table.Flush() // a bytes.Buffer takes everything
	for _, r := range s.Results {
		if r.Cut {
			fmt.Fprintf(w, "  %s was cut short\n", r.Name)
		}
	}
	for _, line := range s.LeftOut {
		fmt.Fprintf(w, "  left out: %s\n", line)
	}
}
