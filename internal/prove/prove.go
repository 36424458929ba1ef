// Package prove states figures: how much, and how soon. They depend on the machine,
// so `make test` never asserts them; `make prove` measures them, one test at a time,
// in files with the build tag prove.
package prove

import (
	"fmt"
	"os"
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
	side := "at most"
	if f.atLeast {
		side = "at least"
	}
	return fmt.Sprintf("%s: %.4g %s, %s %.4g", f.name, f.value, f.unit, side, f.bound)
}

// Figures measures, and states each figure with its bound and with how long the
// machine paused meanwhile. If one misses its bound and a pause explains that, all are
// measured again, three times in all, and then reported as «machine too busy to tell»:
// the test is skipped, neither passed nor failed. A miss without a pause fails.
//
// measure asserts by its own t what is right or wrong, such as that no start is over
// its limit. That fails the test at once, whatever the machine did.
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
		verdict, missed := "holds", false
		for _, f := range figures {
			verdict = "holds"
			if !f.holds() {
				missed = true
				verdict = "MISSED"
				if paused.explain() {
					verdict = "machine too busy to tell"
				}
			}
			fmt.Fprintf(os.Stdout, "figure: %s; %s (%s; %s)\n", f, verdict, t.Name(), paused)
		}
		switch {
		case !missed:
			return
		case !paused.explain():
			t.Fatal("a figure missed its bound, and no pause of the machine explains it")
		case try == tries:
			t.Skipf("machine too busy to tell, measured %d times", tries)
		}
	}
}
