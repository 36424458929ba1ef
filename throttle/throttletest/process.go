package throttletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// errPortTaken says that somebody else listens on the port that was picked.
var errPortTaken = errors.New("the port is taken")

// process is a redis-server that somebody waits for from its start to its end, so
// that it never becomes a zombie.
type process struct {
	cmd *exec.Cmd
	log string // the file that it writes
	// ended is closed once the process is reaped; err is valid from then on.
	ended chan struct{}
	err   error
}

// startProcess runs path in the folder dir. The end of ctx does not end it.
func startProcess(ctx context.Context, dir, path string, args []string) (*process, error) {
	log, err := os.CreateTemp(dir, "log-")
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd:   exec.CommandContext(context.WithoutCancel(ctx), path, args...),
		log:   log.Name(),
		ended: make(chan struct{}),
	}
	p.cmd.Dir = dir
	p.cmd.Stdout = log
	p.cmd.Stderr = log
	dieWithParent(p.cmd)

	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		defer log.Close()
		// To the kernel a process's parent is the thread that started it, so this
		// one has to live as long as the process does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

// awaitReady returns when the server says that it accepts connections. Redis opens its
// port before it says so: hence this very process has the port. On any error the process
// is gone.
func (p *process) awaitReady(ctx context.Context) error {
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if bytes.Contains(p.said(), []byte("Ready to accept connections")) {
				return nil
			}
		case <-p.ended:
			said := p.said()
			if bytes.Contains(said, []byte("Address already in use")) {
				return errPortTaken
			}
			return fmt.Errorf("it ended before it was ready (%w) and said:\n%s", p.err, said)
		case <-ctx.Done():
			p.kill()
			return fmt.Errorf("it was not ready in time: %w; so far it said:\n%s", ctx.Err(), p.said())
		}
	}
}

// said is what the server has said so far.
func (p *process) said() []byte {
	text, _ := os.ReadFile(p.log) // for messages: what can not be read was not said
	return bytes.TrimSpace(text)
}

// kill ends the process, if it has not ended yet, and reaps it.
func (p *process) kill() {
	// The only failure is that the process is gone already.
	_ = p.cmd.Process.Kill()
	<-p.ended
}
