package main

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

// fleet is the worker processes.
type fleet struct {
	members []*member
	end     context.CancelFunc
}

type member struct {
	command *exec.Cmd
	stdout  bytes.Buffer
}

// killAfter is how long a worker process may take to end.
const killAfter = 12 * time.Second

// startFleet starts this program n times over as a worker. The caller stops it.
func startFleet(n int, redisURI string, naive bool, stderr io.Writer) (*fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	// Not the run's context: workers end in their own time when the run does.
	ctx, end := context.WithCancel(context.Background())
	f := &fleet{end: end}
	for range n {
		command := exec.CommandContext(ctx, self, "-worker", "-redis", redisURI, fmt.Sprintf("-naive=%t", naive))
		command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
		command.WaitDelay = killAfter
		// The terminal's Ctrl-C is for this process; it stops its workers itself.
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		m := &member{command: command}
		command.Stdout, command.Stderr = &m.stdout, stderr
		if err := command.Start(); err != nil {
			_, _ = f.stop()
			return nil, fmt.Errorf("starting a worker: %w", err)
		}
		f.members = append(f.members, m)
	}
	return f, nil
}

// stop asks every worker to end, waits for them, and returns the sum of their
// tallies.
func (f *fleet) stop() (tally, error) {
	f.end()
	var sum tally
	var failed []error
	for _, m := range f.members {
		err := m.command.Wait()
		if err == nil || errors.Is(err, context.Canceled) { // we asked it to
			var told tally
			err = json.Unmarshal(m.stdout.Bytes(), &told)
			sum.Attempts += told.Attempts
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("worker process %d: %w", m.command.Process.Pid, err))
		}
	}
	return sum, errors.Join(failed...)
}
