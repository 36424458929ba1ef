package throttletest

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a way to a server that a test can break and mend. It is safe for
// concurrent use.
type Proxy struct {
	delay atomic.Int64 // nanoseconds, each way

	server   string
	listener net.Listener
	copies   sync.WaitGroup

	mu     sync.Mutex
	isCut  bool
	conns  map[net.Conn]struct{}
	passes chan struct{} // closed while what is sent arrives
	loses  []byte        // in the request whose answer is lost; nil: none is
}

// NewProxy listens on a free port of 127.0.0.1 until the test ends, and passes on
// what comes to the server at that host:port.
func NewProxy(tb testing.TB, server string) *Proxy {
	tb.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{server: server, listener: listener, conns: map[net.Conn]struct{}{}, passes: make(chan struct{})}
	close(p.passes)
	p.copies.Go(p.accept)
	tb.Cleanup(func() {
		_ = listener.Close()
		p.Mend()
		p.Cut()
		p.copies.Wait()
	})
	return p
}

// Addr is where the proxy listens, as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut ends all connections, and others as soon as they are made, until Mend. The port
// stays the proxy's, or somebody else might get it.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCut = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// Hold lets nothing through, and breaks no connection, until Mend.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.passes:
		p.passes = make(chan struct{})
	default: // it holds already
	}
}

// Mend lets everything through again: what was held, too.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.passes:
	default:
		close(p.passes)
	}
	p.isCut = false
}

// Delay has what is sent arrive later by that, each way.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// LoseReply passes the next request on that has this text in it, in whatever case,
// and ends its connection instead of bringing the answer: what go-redis repeats.
func (p *Proxy) LoseReply(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loses = bytes.ToLower([]byte(text))
}

// Lost reports whether the answer that LoseReply asked for has been lost.
func (p *Proxy) Lost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loses == nil
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		if p.isCut {
			_, _ = client.Close(), server.Close()
		}
		p.mu.Unlock()
		var loses atomic.Bool // whether the next answer is to be lost
		p.copies.Go(func() {
			p.carry(client, server, func(request []byte) bool {
				if p.loseReplyTo(request) {
					loses.Store(true)
				}
				return true
			})
		})
		p.copies.Go(func() { p.carry(server, client, func([]byte) bool { return !loses.Load() }) })
	}
}

// loseReplyTo reports, once, that this is the request whose answer is to be lost.
func (p *Proxy) loseReplyTo(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loses == nil || !bytes.Contains(bytes.ToLower(request), p.loses) {
		return false
	}
	p.loses = nil
	return true
}

// carry carries what is sent, until either end closes or something does not pass.
func (p *Proxy) carry(from, to net.Conn, passes func([]byte) bool) {
	defer func() {
		_ = from.Close()
		_ = to.Close()
		p.mu.Lock()
		delete(p.conns, from)
		delete(p.conns, to)
		p.mu.Unlock()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		p.mu.Lock()
		arrives := p.passes
		p.mu.Unlock()
		<-arrives
		time.Sleep(time.Duration(p.delay.Load()))
		if n > 0 && !passes(buffer[:n]) {
			return
		}
		if _, failed := to.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}
