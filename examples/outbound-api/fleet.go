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
type fleet []*member

type member struct {
	command *exec.Cmd
	stdout  bytes.Buffer
}

// killAfter is how long a worker process may take to end.
const killAfter = 12 * time.Second

// startFleet starts this program n times over as a worker. It is up to the caller
// to stop the fleet.
func startFleet(n int, redisURI string, naive bool, stderr io.Writer) (fleet, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	var workers fleet
	for range n {
		m := &member{command: exec.Command(self, "-worker", "-redis", redisURI, fmt.Sprintf("-naive=%t", naive))}
		m.command.Stdout, m.command.Stderr = &m.stdout, stderr
		// The terminal's Ctrl-C is for this process; it stops its workers itself.
		m.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := m.command.Start(); err != nil {
			_, _ = workers.stop()
			return nil, fmt.Errorf("starting a worker: %w", err)
		}
		workers = append(workers, m)
	}
	return workers, nil
}

// stop asks every worker to end, waits for them, and returns the sum of their
// tallies.
func (f fleet) stop() (tally, error) {
	for _, m := range f {
		_ = m.command.Process.Signal(syscall.SIGTERM)
	}
	var sum tally
	var failed []error
	for _, m := range f {
		ctx, cancel := context.WithTimeout(context.Background(), killAfter)
		kill := context.AfterFunc(ctx, func() { _ = m.command.Process.Kill() })
		err := m.command.Wait()
		kill()
		cancel()
		var told tally
		if err == nil {
			err = json.Unmarshal(m.stdout.Bytes(), &told)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("worker process %d: %w", m.command.Process.Pid, err))
		}
		sum.Attempts += told.Attempts
	}
	return sum, errors.Join(failed...)
}
