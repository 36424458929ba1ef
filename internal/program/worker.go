package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Worker is a process that works for another, until the end of its standard input.
type Worker struct {
	// Stdin is how it is told what to do, Words what it says on its standard output.
	Stdin io.WriteCloser
	Words *json.Decoder

	command *exec.Cmd
	end     context.CancelFunc
	stderr  bytes.Buffer
}

// KillAfter is how long a worker process may take to end.
const KillAfter = 15 * time.Second

// StartSelf starts this program as a worker; see StartWorker.
func StartSelf(variable string, job any) (*Worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	return StartWorker(variable, job, self)
}

// StartWorker starts a program with a job, as JSON in an environment variable. The caller
// stops it.
func StartWorker(variable string, job any, name string, args ...string) (*Worker, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	// Not a run's context: a worker ends in its own time when the run does.
	ctx, end := context.WithCancel(context.Background())
	w := &Worker{command: exec.CommandContext(ctx, name, args...), end: end}
	stdin, err := w.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := w.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.Stdin, w.Words = stdin, json.NewDecoder(stdout)
	w.command.Env = append(os.Environ(), variable+"="+string(text))
	w.command.Stderr = &w.stderr
	w.command.Cancel = stdin.Close
	w.command.WaitDelay = KillAfter
	// The terminal's Ctrl-C is for this process; it stops its workers itself.
	w.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := w.command.Start(); err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	return w, nil
}

// End tells the worker to end.
func (w *Worker) End() { w.end() }

// Stop tells the worker to end and waits for it, at most KillAfter. What it has said is to
// be read before.
func (w *Worker) Stop() error {
	w.end()
	if err := w.command.Wait(); err != nil && !errors.Is(err, context.Canceled) { // we asked it to
		return w.Failed(fmt.Errorf("%w: %s", err, bytes.TrimSpace(w.stderr.Bytes())))
	}
	return nil
}

// Failed says that the error is this worker's.
func (w *Worker) Failed(err error) error {
	return fmt.Errorf("worker process %d: %w", w.command.Process.Pid, err)
}
