// Package prove states figures: how much, and how soon. They depend on the machine,
// so `make test` never asserts them; `make prove` measures them, one test at a time,
// in files with the build tag prove.
package prove

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// tries is how often a figure is measured that the machine may have spoilt.
const tries = 3

// Figure is what was measured, and its bound.
type Figure struct {
	name, unit   string
	value, bound float64
	atLeast      bool
}

// AtLeast is a figure that must not be below its bound.
func AtLeast(name string, value, bound float64, unit string) Figure {
	return Figure{name, unit, value, bound, true}
}

// AtMost is a figure that must not be above its bound.
func AtMost(name string, value, bound float64, unit string) Figure {
	return Figure{name, unit, value, bound, false}
}

// Took is AtMost of a duration.
func Took(name string, value, bound time.Duration) Figure {
	return AtMost(name, value.Seconds()*1000, bound.Seconds()*1000, "ms")
}

func (f Figure) holds() bool {
	return f.atLeast && f.value >= f.bound || !f.atLeast && f.value <= f.bound
}

func (f Figure) String() string {
	side, verdict := "at most", "holds "
	if f.atLeast {
		side = "at least"
	}
	if !f.holds() {
		verdict = "MISSED"
	}
	return fmt.Sprintf("  %s  %s: %s, %s %s", verdict, f.name, f.quantity(f.value), side, f.quantity(f.bound))
}

func (f Figure) quantity(x float64) string {
	format := "%.4g %s"
	if x >= 1000 {
		format = "%.0f %s"
	}
	return strings.TrimSpace(fmt.Sprintf(format, x, f.unit))
}

// Figures measures, and states each figure with its bound and with what the machine did
// meanwhile. If one misses its bound and a pause explains that, all are measured again,
// three times in all, and then reported as «machine too busy to tell»: the test is
// skipped, neither passed nor failed. A miss without a pause fails.
//
// measure asserts by its own t what is right or wrong, such as that no start is over
// its limit. That fails the test at once, whatever the machine did. What it starts ends
// with its t.
func Figures(t *testing.T, measure func(t *testing.T) []Figure) {
	t.Helper()
	for try := 1; ; try++ {
		var figures []Figure
		watch := startWatch()
		lawful := t.Run(fmt.Sprint("try ", try), func(t *testing.T) { figures = measure(t) })
		paused := watch.stop()
		if !lawful {
			return
		}
		// Straight to the output, for a test's own log is told only when it has ended.
		fmt.Fprintf(os.Stdout, "%s, measured the %s time; %s\n", t.Name(), []string{"first", "second", "third"}[try-1], paused)
		missed := false
		for _, f := range figures {
			fmt.Fprintln(os.Stdout, f)
			missed = missed || !f.holds()
		}
		switch {
		case !missed:
			return
		case !paused.explain():
			t.Fatal("a figure missed its bound, and no pause of the machine explains it")
		case try == tries:
			t.Skip("machine too busy to tell")
		}
	}
}
