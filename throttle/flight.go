package throttle

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// flight carries concurrent requests of one process for one policy to Redis
// together (group commit): whoever finds a call under way boards the next one,
// which leaves when the one under way has landed. Who finds no call under way makes
// one himself, without a change of goroutines; unless others are about to come:
//   - He would have to wait for his slot anyway. Then the call leaves a little later.
//   - There were at least three passengers at once just now. Then the call leaves with
//     as many as that, and the last one to board makes it; or soon, without them.
//
// Nobody who is urgent waits, and who boards with one does not, either.
type flight struct {
	most int                // passengers of one call
	land func([]*passenger) // makes the call and answers every passenger

	mu      sync.Mutex
	waiting []*passenger
	flying  bool
	// leaves makes the next call when it has waited for passengers; nil while none does.
	// full is how many it waits for.
	leaves *time.Timer
	full   int
	// present are the callers that have no answer yet, and together is the most there were
	// at once lately.
	present  atomic.Int64
	together int
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
	companyInLine   = 2500 * time.Microsecond
)

// How long a call waits for as many passengers as came together just now, and how many
// these must be: less would not be worth the wait.
const (
	gathering     = 500 * time.Microsecond
	leastTogether = 3
)

// carry takes a passenger along and waits for its answer. A caller who makes the call
// himself hears of the end of ctx when the call returns.
func (f *flight) carry(ctx context.Context, p *passenger) (*Reservation, error) {
	f.present.Add(1)
	defer f.present.Add(-1)
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
// flying and nobody else is waited for; then the passenger has its answer when board
// returns.
func (f *flight) board(p *passenger) {
	f.mu.Lock()
	f.waiting = append(f.waiting, p)
	f.together = max(f.together, int(f.present.Load()))
	if !f.leavesWith(p) {
		f.mu.Unlock()
		return
	}
	next := f.takeOff()
	f.mu.Unlock()
	f.carryAll(next)

	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waiting) == 0 {
		f.flying = false
		return
	}
	go f.fly()
}

// leavesWith reports whether a passenger who has just boarded is to make the next call,
// now. It needs the lock.
func (f *flight) leavesWith(p *passenger) bool {
	if !f.flying {
		f.flying = true
		return !f.waitFor(f.companyFor(p), f.most) && !f.gather()
	}
	return f.leaves != nil && (p.hurries() || len(f.waiting) >= f.full) && f.leaves.Stop()
}

// waitFor has the next call wait for so many passengers, and reports whether it does. It
// needs the lock.
func (f *flight) waitFor(d time.Duration, passengers int) bool {
	if d < gathering || len(f.waiting) >= passengers {
		return false
	}
	f.full = passengers
	f.leaves = time.AfterFunc(d, f.leave)
	return true
}

// gather has the next call wait for as many passengers as came together lately, and
// reports whether it does. It needs the lock.
func (f *flight) gather() bool {
	return f.together >= leastTogether && !slices.ContainsFunc(f.waiting, (*passenger).hurries) &&
		f.waitFor(gathering, min(f.together, f.most))
}

// leave makes the calls without those that were waited for.
func (f *flight) leave() {
	f.mu.Lock()
	f.together = len(f.waiting)
	next := f.takeOff()
	f.mu.Unlock()
	f.carryAll(next)
	f.fly()
}

// takeOff takes the passengers of the next call. It needs the lock.
func (f *flight) takeOff() []*passenger {
	f.leaves = nil
	next := f.waiting
	if len(next) > f.most {
		next = next[:f.most:f.most]
	}
	f.waiting = f.waiting[len(next):]
	return next
}

// carryAll makes the call for those that are still there.
func (f *flight) carryAll(passengers []*passenger) {
	if passengers = present(passengers); len(passengers) > 0 {
		f.land(passengers)
	}
}

// fly makes calls until nobody is waiting, or others are waited for. Each call is
// bounded by callTimeout, so the goroutine ends soon after its last passenger boarded.
func (f *flight) fly() {
	for {
		runtime.Gosched() // who has just had an answer and asks again comes along
		f.mu.Lock()
		if len(f.waiting) == 0 {
			f.waiting, f.flying = nil, false
			f.mu.Unlock()
			return
		}
		if f.gather() {
			f.mu.Unlock()
			return
		}
		next := f.takeOff()
		f.mu.Unlock()
		f.carryAll(next)
	}
}

// companyFor is how long a call with this passenger may wait for others. It needs
// the lock.
func (f *flight) companyFor(p *passenger) time.Duration {
	if p.hurries() || p.claim.request.MaxWait <= 0 && !p.claim.parks() {
		return 0
	}
	if wait := min(time.Until(f.taken)/companyPart, f.company); wait >= shortestCompany {
		return wait
	}
	return 0
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

// hurries reports whether the passenger waits for nobody.
func (p *passenger) hurries() bool { return p.claim.urgent || p.claim.request.Called }

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
