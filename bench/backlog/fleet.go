package backlog

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rampmeter/rampmeter/internal/program"
)

// fleet is the worker processes of one turn, and what they have told. It is safe
// for concurrent use.
type fleet struct {
	workers []*program.Worker
	readers sync.WaitGroup

	mu       sync.Mutex
	tempo    []pulse
	attempts int
	done     int
	seen     []bool // by the number of the task
	distinct int    // how many are seen
	lost     error  // why a worker ended by itself
}

// pulse is how many attempts a worker told of at a time, in tenths of a second.
type pulse struct {
	at       time.Time
	attempts int
}

// startFleet starts so many worker processes and returns when all of them wait to
// go. The caller stops it.
func startFleet(n, tasks int, start func() (*program.Worker, error)) (*fleet, error) {
	f := &fleet{seen: make([]bool, tasks)}
	for range n {
		w, err := start()
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		f.workers = append(f.workers, w)
	}
	defer time.AfterFunc(program.KillAfter, f.end).Stop()
	for _, w := range f.workers {
		var ready word
		if err := w.Words.Decode(&ready); err != nil {
			return nil, errors.Join(w.Failed(fmt.Errorf("was not ready to go: %w", err)), f.stop())
		}
	}
	for _, w := range f.workers {
		f.readers.Go(func() { f.listen(w) })
	}
	return f, nil
}

// listen hears a worker out.
func (f *fleet) listen(from *program.Worker) {
	for {
		var w word
		err := from.Words.Decode(&w)
		f.mu.Lock()
		if err == nil {
			f.hear(w)
		} else if f.lost == nil {
			f.lost = from.Failed(fmt.Errorf("ended: %w", err))
		}
		f.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// hear adds up. It needs the lock.
func (f *fleet) hear(w word) {
	f.tempo = append(f.tempo, pulse{time.Now(), len(w.Attempts)})
	f.attempts += len(w.Attempts)
	f.done += w.Done
	for _, number := range w.Attempts {
		if number >= 0 && number < len(f.seen) && !f.seen[number] {
			f.seen[number] = true
			f.distinct++
		}
	}
}

// goAhead lets the workers begin.
func (f *fleet) goAhead() error {
	for _, w := range f.workers {
		if _, err := io.WriteString(w.Stdin, "go\n"); err != nil {
			return w.Failed(err)
		}
	}
	return nil
}

// told is what all workers have told so far. The error is that one has ended.
func (f *fleet) told() (attempts, distinct, done int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attempts, f.distinct, f.done, f.lost
}

// end tells the workers to end.
func (f *fleet) end() {
	for _, w := range f.workers {
		w.End()
	}
}

// stop ends the workers and waits for them, at most program.KillAfter.
func (f *fleet) stop() error {
	f.end()
	f.readers.Wait()
	var errs []error
	for _, w := range f.workers {
		errs = append(errs, w.Stop())
	}
	return errors.Join(errs...)
}
