package producer

import (
	"cmp"
	"sync"
)

// flights keeps two entries of one queue and ID from being under way at once.
// Entries without an ID fly as they like. The zero value is ready.
type flights struct {
	mu sync.Mutex
	by map[[2]string]chan struct{} // closed at the end of the flight
}

// begin waits until no entry of the same ID is under way, which is no longer than
// a call takes. It is for one goroutine, end is for any.
func (f *flights) begin(e *Entry) {
	if e.ID == "" {
		return
	}
	key := flightOf(e)
	f.mu.Lock()
	before := f.by[key]
	f.mu.Unlock()
	if before != nil {
		<-before
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[[2]string]chan struct{}{}
	}
	f.by[key] = make(chan struct{})
}

func flightOf(e *Entry) [2]string {
	return [2]string{cmp.Or(e.Queue, "default"), e.ID}
}

func (f *flights) end(e *Entry) {
	if e.ID == "" {
		return
	}
	key := flightOf(e)
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.by[key])
	delete(f.by, key)
}
