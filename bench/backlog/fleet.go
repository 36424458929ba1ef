package backlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// fleet is the worker processes of one turn, and what they have told. It is safe
// for concurrent use.
type fleet struct {
	workers []*process
	readers sync.WaitGroup
	end     context.CancelFunc

	mu       sync.Mutex
	tempo    []pulse
	attempts int
	done     int
	seen     []bool // by the number of the task
	distinct int    // how many are seen
	ready    int
	lost     error // why a worker ended by itself
	changed  chan struct{}
}

// pulse is how many attempts a worker told of at a time, in tenths of a second.
type pulse struct {
	at       time.Time
	attempts int
}

// process is one worker.
type process struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stderr  bytes.Buffer
}

// killAfter is how long a worker process may take to end.
const killAfter = 15 * time.Second

// startFleet starts so many worker processes and returns when all of them wait to
// go. The caller stops it.
func startFleet(n, tasks int, command func(context.Context) *exec.Cmd) (*fleet, error) {
	// Not the run's context: workers end in their own time when the turn does.
	ctx, end := context.WithCancel(context.Background())
	f := &fleet{end: end, seen: make([]bool, tasks), changed: make(chan struct{}, 1)}
	for range n {
		if err := f.add(command(ctx)); err != nil {
			return nil, errors.Join(err, f.stop())
		}
	}
	patience := time.NewTimer(killAfter)
	defer patience.Stop()
	for {
		f.mu.Lock()
		ready, lost := f.ready, f.lost
		f.mu.Unlock()
		switch {
		case lost != nil:
			return nil, errors.Join(lost, f.stop())
		case ready == n:
			return f, nil
		}
		select {
		case <-f.changed:
		case <-patience.C:
			return nil, errors.Join(fmt.Errorf("the workers were not ready in %s", killAfter), f.stop())
		}
	}
}

// add starts one process and reads what it tells.
func (f *fleet) add(command *exec.Cmd) error {
	p := &process{command: command}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if p.stdin, err = command.StdinPipe(); err != nil {
		return err
	}
	command.Stderr = &p.stderr
	command.Cancel = p.stdin.Close // which is what a worker ends at
	command.WaitDelay = killAfter
	// The terminal's Ctrl-C is for this process; it stops its workers itself.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting a worker: %w", err)
	}
	f.workers = append(f.workers, p)
	f.readers.Go(func() { f.listen(p, stdout) })
	return nil
}

// listen hears a worker out.
func (f *fleet) listen(p *process, stdout io.Reader) {
	words := json.NewDecoder(bufio.NewReader(stdout))
	for {
		var w word
		err := words.Decode(&w)
		f.mu.Lock()
		if err != nil {
			if f.lost == nil {
				f.lost = fmt.Errorf("worker process %d ended: %w", p.command.Process.Pid, err)
			}
		} else {
			f.hear(w)
		}
		f.mu.Unlock()
		select {
		case f.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// hear adds up. It needs the lock.
func (f *fleet) hear(w word) {
	if w.Ready {
		f.ready++
	}
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
	for _, p := range f.workers {
		if _, err := io.WriteString(p.stdin, "go\n"); err != nil {
			return fmt.Errorf("worker process %d: %w", p.command.Process.Pid, err)
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

// stop ends the workers and waits for them, at most killAfter.
func (f *fleet) stop() error {
	f.end()
	f.readers.Wait()
	var failed []error
	for _, p := range f.workers {
		if err := p.command.Wait(); err != nil && !errors.Is(err, context.Canceled) { // we asked it to
			failed = append(failed, fmt.Errorf("worker process %d: %w: %s", p.command.Process.Pid, err, bytes.TrimSpace(p.stderr.Bytes())))
		}
	}
	return errors.Join(failed...)
}

// workerCommand runs this program as a worker.
func workerCommand(j *job) (func(context.Context) *exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) *exec.Cmd {
		command := exec.CommandContext(ctx, self)
		command.Env = append(os.Environ(), jobVariable+"="+string(text))
		return command
	}, nil
}
