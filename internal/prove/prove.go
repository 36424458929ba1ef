// Package prove states figures: how much, and how soon. They depend on the machine,
// so `make test` never asserts them; `make prove` measures them, one test at a time,
// in files with the build tag prove.
package prove

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
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

const (
	// Every round the watching thread looks at the clock without cease, for longer than
	// a kernel lets one thread have a processor that others want, and sleeps for the
	// rest, which leaves the processor to what is measured.
	round = 100 * time.Millisecond
	looks = 12 * time.Millisecond
	// What explains a miss: a pause as long as a start may be late, or others that use
	// so much of all processors.
	longPause = 20 * time.Millisecond
	muchUsed  = 0.1
)

// pauses are what the machine did beside what was measured.
type pauses struct {
	longest time.Duration // that a thread was kept from looking at the clock
	others  float64       // share of all processors that other programs, or machines, had
}

func (p pauses) explain() bool { return p.longest >= longPause || p.others >= muchUsed }

func (p pauses) String() string {
	return fmt.Sprintf("the machine paused for %s at most, others used %.0f %% of it", p.longest.Round(100*time.Microsecond), 100*p.others)
}

// watch is a thread that does nothing but look at the clock.
type watch struct {
	began time.Time
	usage usage
	ends  chan struct{}
	told  chan time.Duration
}

func startWatch() *watch {
	w := &watch{began: time.Now(), usage: readUsage(), ends: make(chan struct{}), told: make(chan time.Duration)}
	go w.run()
	return w
}

// stop ends the watch and returns what it saw. The processes that were measured have to
// have ended by then, or what they used counts as used by others.
func (w *watch) stop() pauses {
	close(w.ends)
	longest, now := <-w.told, readUsage()
	all := time.Since(w.began).Seconds() * float64(runtime.NumCPU())
	others := (now.machine - w.usage.machine) - (now.own - w.usage.own)
	return pauses{longest, max(0, others) / all}
}

func (w *watch) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var longest time.Duration
	for {
		began := time.Now()
		last := began
		for last.Sub(began) < looks {
			now := time.Now()
			longest = max(longest, now.Sub(last))
			last = now
		}
		select {
		case <-w.ends:
			w.told <- longest
			return
		case <-time.After(round - looks):
			longest = max(longest, time.Since(last)-(round-looks))
		}
	}
}

// usage is how many seconds processors were busy: for anybody, with what a host of
// virtual machines withheld, and for this process and those it has waited for.
type usage struct{ machine, own float64 }

func readUsage() (u usage) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if syscall.Getrusage(who, &r) == nil {
			u.own += float64(r.Utime.Sec+r.Stime.Sec) + float64(r.Utime.Usec+r.Stime.Usec)/1e6
		}
	}
	u.machine = u.own // where nobody tells, others use nothing
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	const ticks = 100 // a second, in what Linux tells programs
	u.machine = 0
	for i, field := range strings.Fields(line)[1:] { // user nice system idle iowait irq softirq steal ...
		if n, err := strconv.ParseFloat(field, 64); err == nil && i != 3 && i != 4 && i <= 7 {
			u.machine += n / ticks
		}
	}
	return u
}
