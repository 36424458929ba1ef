package throttle

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// flight carries concurrent requests of one process for one policy to Redis
// together (group commit): whoever finds a call under way boards the next one,
// which leaves when the one under way has landed. Who finds no call under way makes
// one himself, without a change of goroutines; unless he would have to wait for his
// slot anyway: then the call leaves a little later, for others to come along; but not
// if he is urgent.
type flight struct {
	most int                // passengers of one call
	land func([]*passenger) // makes the call and answers every passenger

	mu      sync.Mutex
	waiting []*passenger
	flying  bool
	// taken is until when all slots are taken, as the latest answers told; company is
	// how long a call may wait for more passengers, at most, for that reason.
	taken   time.Time
	company time.Duration
}

// How long a call waits for more passengers: a part of the time until the first free
// slot, so that no start is delayed. Not as long if they are sent into line, for then
// workers wait for it who have others to send there.
const (
	companyPart     = 8
	longestCompany  = 10 * time.Millisecond
	shortestCompany = time.Millisecond
	companyInLine   = 4 * time.Millisecond
)

// carry takes a passenger along and waits for its answer. A caller who makes the call
// himself hears of the end of ctx when the call returns.
func (f *flight) carry(ctx context.Context, p *passenger) (*Reservation, error) {
	f.board(p)
	select {
	case <-p.done:
	case <-ctx.Done():
		if p.leave() {
			return nil, ctx.Err()
		}
		<-p.done // the answer came first
	}
	return p.reservation, p.err
}

// board queues a passenger for the next call, or makes it at once when nobody is
// flying; then the passenger has its answer when board returns.
func (f *flight) board(p *passenger) {
	f.mu.Lock()
	if f.flying {
		f.waiting = append(f.waiting, p)
		f.mu.Unlock()
		return
	}
	f.flying = true
	if wait := f.companyFor(p); wait >= shortestCompany {
		f.waiting = append(f.waiting, p)
		f.mu.Unlock()
		time.AfterFunc(wait, f.fly)
		return
	}
	f.mu.Unlock()
	f.land([]*passenger{p})

	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) == 0 {
		f.flying = false
		return
	}
	go f.fly()
}

// fly makes calls until nobody is waiting. Each call is bounded by callTimeout,
// so the goroutine ends soon after its last passenger boarded.
func (f *flight) fly() {
	for {
		runtime.Gosched() // who has just had an answer and asks again comes along
		f.mu.Lock()
		next := f.waiting
		if len(next) > f.most {
			next = next[:f.most:f.most]
		}
		f.waiting = f.waiting[len(next):]
		if len(next) == 0 {
			f.waiting, f.flying = nil, false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		if next = present(next); len(next) > 0 {
			f.land(next)
		}
	}
}

// companyFor is how long a call with this passenger may wait for others. It needs
// the lock.
func (f *flight) companyFor(p *passenger) time.Duration {
	if p.claim.urgent || p.claim.request.Called || p.claim.request.MaxWait <= 0 && !p.claim.parks() {
		return 0
	}
	return min(time.Until(f.taken)/companyPart, f.company)
}

// learn takes from a reservation from when on slots are to be had.
func (f *flight) learn(r *Reservation) {
	taken, company := r.received.Add(r.RetryAfter()), longestCompany
	switch {
	case r.Place != nil:
		company = companyInLine
	case r.Outcome != Granted:
		taken = time.Time{} // who is denied has to hear of it at once
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.taken, f.company = taken, company
}

// present returns the passengers that have not left.
func present(passengers []*passenger) []*passenger {
	here := passengers[:0]
	for _, p := range passengers {
		if !p.hasLeft() {
			here = append(here, p)
		}
	}
	return here
}

// passenger is one request on its way, with a way back for the answer.
type passenger struct {
	claim   *claim
	limiter *Limiter
	done    chan struct{} // closed when the answer is there

	mu          sync.Mutex
	answered    bool
	left        bool
	reservation *Reservation
	err         error
}

func newPassenger(c *claim, l *Limiter) *passenger {
	return &passenger{claim: c, limiter: l, done: make(chan struct{})}
}

// answer delivers the answer. When the caller has left, what was granted is
// given back.
func (p *passenger) answer(r *Reservation, err error) {
	p.mu.Lock()
	p.reservation, p.err, p.answered = r, err, true
	left := p.left
	p.mu.Unlock()
	close(p.done)
	if left && r != nil {
		// Best effort: an unused token comes back by itself in time.
		_ = r.Cancel(context.Background())
	}
}

// leave makes the passenger's caller stop waiting; false when the answer was
// there first.
func (p *passenger) leave() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answered {
		return false
	}
	p.left = true
	return true
}

func (p *passenger) hasLeft() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}
