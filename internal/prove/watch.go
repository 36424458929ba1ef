package prove

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
