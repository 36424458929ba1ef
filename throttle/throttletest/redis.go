package throttletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// ErrNoRedisServer is wrapped by the error of StartRedis on a machine that has no
// redis-server.
var ErrNoRedisServer = errors.New("no redis-server found")

// RedisConfig says how to start a real Redis. The zero value is good for most.
type RedisConfig struct {
	// Path is the program to run. Empty means what the environment variable
	// RAMPMETER_REDIS_SERVER names, or else the redis-server on PATH.
	Path string
	// Args come after the arguments that StartRedis gives by itself and win over
	// them, as in {"--appendonly", "yes"}. Leave port, bind, dir, logfile and
	// loglevel alone: starting depends on them.
	Args []string
}

const (
	// redisStartTimeout bounds a start whose context has no end.
	redisStartTimeout = 15 * time.Second
	// redisPortTries is how often another program may snatch the free port between
	// our finding it and Redis's listening on it.
	redisPortTries = 10
)

// StartRedis starts a real redis-server on a free port of 127.0.0.1, in a
// temporary folder and without persistence, and returns once it answers. It
// waits for that until ctx ends, and for 15 seconds at most; after the start ctx
// means nothing to the server.
//
// Close kills the server and removes the folder. On Linux a server also ends with
// the process that started it, however that one ends; only the folder stays then.
//
// The error wraps ErrNoRedisServer if there is none to start.
func StartRedis(ctx context.Context, cfg RedisConfig) (*Server, error) {
	path, err := findRedis(cfg.Path, os.Getenv)
	if err != nil {
		return nil, err
	}
	srv, err := startRedis(ctx, path, cfg.Args, freePort)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return srv, nil
}

// findRedis returns the absolute path of the redis-server to run: it is going to
// run in another folder.
func findRedis(path string, getenv func(string) string) (string, error) {
	if path == "" {
		path = getenv("RAMPMETER_REDIS_SERVER")
	}
	if path != "" {
		found, err := exec.LookPath(path)
		if err != nil {
			return "", fmt.Errorf("the redis-server that was asked for can not be run: %w", err)
		}
		return filepath.Abs(found)
	}
	found, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("%w: install it (apt-get install redis-server, or brew install redis), "+
			"or set RAMPMETER_REDIS_SERVER to its path", ErrNoRedisServer)
	}
	return filepath.Abs(found)
}

func startRedis(ctx context.Context, path string, args []string, pickPort func(context.Context) (int, error)) (srv *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisStartTimeout)
	defer cancel()

	dir, err := os.MkdirTemp("", "rampmeter-redis-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()

	for range redisPortTries {
		port, err := pickPort(ctx)
		if err != nil {
			return nil, err
		}
		proc, err := startProcess(ctx, dir, path, append([]string{
			"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
			"--daemonize", "no", "--save", "", "--appendonly", "no",
		}, args...))
		if err != nil {
			return nil, err
		}
		err = proc.awaitReady(ctx)
		if errors.Is(err, errPortTaken) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return greet(ctx, port, proc, dir)
	}
	return nil, fmt.Errorf("gave up after %d ports: %w", redisPortTries, errPortTaken)
}

// greet makes a Server of a process that listens, once it has answered a PING.
func greet(ctx context.Context, port int, proc *process, dir string) (*Server, error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	srv := newServer(addr, func() error {
		proc.kill()
		return os.RemoveAll(dir)
	})
	if err := srv.client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(fmt.Errorf("it is up but does not answer: %w", err), srv.Close())
	}
	return srv, nil
}

// freePort asks the kernel for a port that nobody listens on just now.
func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

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
