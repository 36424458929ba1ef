package backlog

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"time"
)

// call is what the API knows of one call.
type call struct {
	task    int
	tenant  string
	arrived time.Time
	// began is when the handler started, by its own clock, which on one machine is
	// the same. It is for judging limits: they promise starts, not arrivals.
	began time.Time
	// slot is the reserved one; zero for a contender that has none or does not tell.
	slot time.Time
	// answered is when the call was over.
	answered time.Time
}

// api is somebody else's: it records calls and refuses none. A call takes as long as
// its path says, as in /200ms. It is safe for concurrent use.
type api struct {
	server *httptest.Server

	mu    sync.Mutex
	calls []call // in order of arrival
	last  time.Time
}

// listenAPI serves an API on a free port. The caller closes its server.
func listenAPI() *api {
	a := &api{}
	a.server = httptest.NewServer(a)
	return a
}

// ServeHTTP records a call.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	query := r.URL.Query()
	task, err := strconv.Atoi(query.Get("task"))
	if err != nil {
		http.Error(w, "task: "+err.Error(), http.StatusBadRequest)
		return
	}
	if takes, err := time.ParseDuration(r.URL.Path[1:]); err == nil {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
	c := call{
		task: task, tenant: query.Get("tenant"), arrived: arrived, answered: time.Now(),
		began: microseconds(query.Get("began")), slot: microseconds(query.Get("slot")),
	}
	a.mu.Lock()
	a.calls = append(a.calls, c)
	a.last = arrived
	a.mu.Unlock()
}

// microseconds reads an instant; zero if there is none.
func microseconds(text string) time.Time {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n)
}

// count is how many calls came, and when the last one did.
func (a *api) count() (int, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls), a.last
}

// record is a copy of all calls, in order of arrival.
func (a *api) record() []call {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := slices.Clone(a.calls)
	slices.SortStableFunc(calls, func(x, y call) int { return x.arrived.Compare(y.arrived) })
	return calls
}
