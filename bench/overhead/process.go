package overhead

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// process is the worker process, as the bench sees it.
type process struct {
	command *exec.Cmd
	orders  io.WriteCloser
	answers *json.Decoder
	stderr  bytes.Buffer
}

// killAfter is how long the worker process may take to end.
const killAfter = 15 * time.Second

// startWorker runs this program as a worker. The caller stops it.
func startWorker(j *job) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{command: exec.Command(self)}
	p.command.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.command.Stderr = &p.stderr
	p.command.WaitDelay = killAfter
	// The terminal's Ctrl-C is for this process, which stops its worker itself.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.orders, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	p.answers = json.NewDecoder(stdout)
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	return p, nil
}

// work has the worker work off what is in the queue. When ctx ends first, the worker ends.
func (p *process) work(ctx context.Context, o order) (done, error) {
	defer context.AfterFunc(ctx, func() { _ = p.orders.Close() })()
	var d done
	if err := json.NewEncoder(p.orders).Encode(o); err != nil {
		return d, errors.Join(ctx.Err(), err)
	}
	if err := p.answers.Decode(&d); err != nil {
		return d, errors.Join(ctx.Err(), fmt.Errorf("the worker process ended: %w", err))
	}
	return d, nil
}

// stop ends the worker, if there is one, and waits for it.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	_ = p.orders.Close() // which is what it ends at
	if err := p.command.Wait(); err != nil {
		return fmt.Errorf("worker process: %w: %s", err, bytes.TrimSpace(p.stderr.Bytes()))
	}
	return nil
}

// uri is how the worker process is told of Redis.
func uri(options *redis.Options) string {
	address := url.URL{Scheme: "redis", Host: options.Addr, Path: fmt.Sprintf("/%d", options.DB)}
	if options.TLSConfig != nil {
		address.Scheme = "rediss"
	}
	if options.Password != "" {
		address.User = url.UserPassword(options.Username, options.Password)
	}
	return address.String()
}
