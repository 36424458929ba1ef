package prove

import (
	"fmt"
	"runtime"
	"time"
)

const (
	// Every round the watching thread looks at the clock without cease, for longer than
	// a kernel lets one thread have a processor that others want, and sleeps for the
	// rest, which leaves the processor to what is measured.
	round = 100 * time.Millisecond
	looks = 12 * time.Millisecond
	// A look at the clock takes less, and a sleep is late by less, where nothing pauses.
	usual = 500 * time.Microsecond
	// longPause and muchPaused are from where on pauses explain a miss: a start may be
	// 20 ms late, and a machine that keeps threads waiting for a tenth of the time has
	// not enough of it left.
	longPause  = 20 * time.Millisecond
	muchPaused = 0.1
)

// pauses are how long a thread that wanted to run did not.
type pauses struct {
	longest time.Duration
	share   float64 // of the time in which it wanted to
}

func (p pauses) explain() bool { return p.longest >= longPause || p.share >= muchPaused }

func (p pauses) String() string {
	return fmt.Sprintf("the machine paused for %s at most, %.0f %% of the time", p.longest.Round(100*time.Microsecond), 100*p.share)
}

// watch is a thread that does nothing but look at the clock.
type watch struct {
	ends chan struct{}
	told chan pauses
}

func startWatch() *watch {
	w := &watch{ends: make(chan struct{}), told: make(chan pauses)}
	go w.run()
	return w
}

// stop ends the watch and returns what it saw.
func (w *watch) stop() pauses {
	close(w.ends)
	return <-w.told
}

func (w *watch) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var longest, paused, wanted time.Duration
	missed := func(gap time.Duration) {
		if gap > usual {
			longest, paused = max(longest, gap), paused+gap
		}
	}
	for {
		began := time.Now()
		last := began
		for last.Sub(began) < looks {
			now := time.Now()
			missed(now.Sub(last))
			last = now
		}
		wanted += last.Sub(began)
		select {
		case <-w.ends:
			w.told <- pauses{longest, float64(paused) / float64(wanted)}
			return
		case <-time.After(round - looks):
			missed(time.Since(last) - (round - looks))
		}
	}
}
