package decisions

import (
	"bytes"
	"fmt"
	"io"
	"slices"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
)

// writeText prints a table for each cell, one of the ratios of all cells, and one
// of the bytes per key.
func (r *report) writeText(w io.Writer) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Redis %s; medians of %d turns of %s each; %d connections per client.\n",
		r.Redis, r.Rounds, r.Slice, r.Pool)
	for _, cell := range r.byCell() {
		writeCell(&text, cell)
	}
	r.writeRatios(&text, "EVALSHA return 1", func(r result) float64 { return r.AgainstBare })
	r.writeRatios(&text, "redis_rate", func(r result) float64 { return r.AgainstRedisRate })
	r.writeMemory(&text)
	_, err := text.WriteTo(w)
	return err
}

// byCell parts the results where callers or keys change.
func (r *report) byCell() [][]result {
	var cells [][]result
	for i, result := range r.Cells {
		if i == 0 || result.Callers != r.Cells[i-1].Callers || result.Keys != r.Cells[i-1].Keys {
			cells = append(cells, nil)
		}
		last := len(cells) - 1
		cells[last] = append(cells[last], result)
	}
	return cells
}

func writeCell(w io.Writer, cell []result) {
	fmt.Fprintf(w, "\n%s on %s\n", program.Counted(cell[0].Callers, "caller"), program.Counted(cell[0].Keys, "key"))
	table := harness.NewTable(w)
	fmt.Fprintln(table, "\tdecisions/s\tp50\tp99\tRedis CPU\tx EVALSHA\tx redis_rate\terrors\t")
	for _, r := range cell {
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%s\t%.1f µs\t%.2f\t%.2f\t%d\t\n",
			harness.Padded(r.Name), r.PerSecond, harness.Latency(r.P50), harness.Latency(r.P99), r.CPU, r.AgainstBare, r.AgainstRedisRate, r.Errors)
	}
	_ = table.Flush() // a bytes.Buffer takes everything
	for _, r := range cell {
		if r.AnyError != "" {
			fmt.Fprintf(w, "  %s failed with: %s\n", r.Name, r.AnyError)
		}
	}
}

// writeRatios prints one row per contender and one column per cell.
func (r *report) writeRatios(w io.Writer, reference string, ratio func(result) float64) {
	cells := r.byCell()
	if len(cells) == 0 {
		return
	}
	fmt.Fprintf(w, "\nDecisions for each one of %s\n", reference)
	table := harness.NewTable(w)
	for _, cell := range cells {
		fmt.Fprintf(table, "\t%d on %s", cell[0].Callers, program.Counted(cell[0].Keys, "key"))
	}
	fmt.Fprintln(table, "\t")
	for row := range cells[0] {
		fmt.Fprint(table, harness.Padded(cells[0][row].Name))
		for _, cell := range cells {
			fmt.Fprintf(table, "\t%.2f", ratio(cell[row]))
		}
		fmt.Fprintln(table, "\t")
	}
	_ = table.Flush()
}

func (r *report) writeMemory(w io.Writer) {
	if len(r.Memory) == 0 {
		return
	}
	fmt.Fprintf(w, "\nBytes per key: idle is asked once; full is used up, at %d per %s\n", narrow.count, narrow.period)
	table := harness.NewTable(w)
	fmt.Fprintln(table, "\tidle\tfull\t")
	for _, m := range slices.DeleteFunc(slices.Clone(r.Memory), func(m memory) bool { return m.Name == bareName }) {
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t\n", harness.Padded(m.Name), m.Idle, m.Full)
	}
	_ = table.Flush()
	for _, m := range r.Memory {
		if m.Error != "" {
			fmt.Fprintf(w, "  %s failed with: %s\n", m.Name, m.Error)
		}
	}
}
