package throttletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
	"time"
)

// errPortTaken says that somebody else listens on the port that was picked.
var errPortTaken = errors.New("the port is taken")

// process is a redis-server that somebody waits for from its start to its end, so
// that it never becomes a zombie.
type process struct {
	cmd *exec.Cmd
	log *startLog
	// ended is closed once the process is reaped; err is valid from then on.
	ended chan struct{}
	err   error
}

// startProcess runs path in the folder dir. The end of ctx does not end it.
func startProcess(ctx context.Context, dir, path string, args []string) (*process, error) {
	p := &process{
		cmd:   exec.CommandContext(context.WithoutCancel(ctx), path, args...),
		log:   &startLog{ready: make(chan struct{})},
		ended: make(chan struct{}),
	}
	p.cmd.Dir = dir
	p.cmd.Stdout = p.log
	p.cmd.Stderr = p.log
	// A child that Redis forked may hold the log open a little longer than Redis.
	p.cmd.WaitDelay = time.Second
	dieWithParent(p.cmd)

	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
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

// awaitReady returns when the server says that it accepts connections. On any
// error the process is gone.
func (p *process) awaitReady(ctx context.Context) error {
	select {
	case <-p.log.ready:
		return nil
	case <-p.ended:
		said := p.log.tail()
		if bytes.Contains(said, []byte("Address already in use")) {
			return errPortTaken
		}
		return fmt.Errorf("it ended before it was ready (%w) and said:\n%s", p.err, said)
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("it was not ready in time: %w; so far it said:\n%s", ctx.Err(), p.log.tail())
	}
}

// kill ends the process, if it has not ended yet, and reaps it.
func (p *process) kill() {
	// The only failure is that the process is gone already.
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// startLog reads what a server says and tells when it is ready. Redis opens its
// port before it says so: hence ready means that this very process has the port.
type startLog struct {
	ready chan struct{}

	mu      sync.Mutex
	said    []byte
	isReady bool
}

// startLogSize is how much of the latest output is kept for an error message.
const startLogSize = 4096

// Write never fails.
func (l *startLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isReady {
		return len(b), nil
	}
	l.said = append(l.said, b...)
	if bytes.Contains(l.said, []byte("Ready to accept connections")) {
		l.isReady = true
		close(l.ready)
	}
	if over := len(l.said) - startLogSize; over > 0 {
		l.said = l.said[over:]
	}
	return len(b), nil
}

func (l *startLog) tail() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(bytes.TrimSpace(l.said))
}
