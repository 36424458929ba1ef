package throttle

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oneCall is how long a call of a testFlight takes.
const oneCall = 200 * time.Microsecond

// testFlight notes its calls. Time passes by the clock of the test's bubble.
type testFlight struct {
	flight
	sizes []int // of its calls

	mu      sync.Mutex
	longest time.Duration // that a caller waited for its answer
}

func newTestFlight() *testFlight {
	f := &testFlight{}
	f.most = 1000
	f.land = func(passengers []*passenger) {
		f.sizes = append(f.sizes, len(passengers))
		time.Sleep(oneCall)
		for _, p := range passengers {
			p.answer(nil, nil)
		}
	}
	return f
}

// ask asks once and notes how long that took.
func (f *testFlight) ask(c claim) {
	asked := time.Now()
	_, _ = f.carry(context.Background(), newPassenger(&c, nil))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.longest = max(f.longest, time.Since(asked))
}

// callers ask so many times each, with a pause after each answer.
func (f *testFlight) callers(n, times int, pause time.Duration) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for range times {
				f.ask(claim{})
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
}

func TestCallsWaitForAsManyAsCameTogether(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		callers int
		pause   time.Duration // between an answer and the same caller's next request
		calls   int           // at most, for a hundred requests of each
		longest time.Duration
	}{
		"one, again and again": {1, 0, 100, oneCall},
		"one, now and then":    {1, time.Second, 100, oneCall},
		"two, again and again": {2, 0, 201, 2 * oneCall},
		"ten, again and again": {10, 0, 103, gathering + oneCall}, // once, when the others have done
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, began := newTestFlight(), time.Now()
				f.callers(tt.callers, 100, tt.pause)
				most := 100*tt.pause + time.Duration(tt.calls)*oneCall + gathering
				assert.LessOrEqual(t, time.Since(began), most, "the last one to come makes the call")
				assert.LessOrEqual(t, len(f.sizes), tt.calls, "calls: %v", f.sizes)
				assert.LessOrEqual(t, f.longest, tt.longest)
			})
		})
	}
}

// Callers that come one by one, but often, travel together, and none waits for long.
func TestCallsGatherFrequentCallers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		every   time.Duration // one comes
		least   float64       // passengers per call
		most    float64
		longest time.Duration
	}{
		"seldom":  {2 * oneCall, 1, 1, oneCall},
		"often":   {oneCall / 2, 4, 7, gathering + 2*oneCall},
		"more so": {oneCall / 20, 40, 80, gathering + 2*oneCall},
		"at once": {0, 600, 1000, gathering + 3*oneCall}, // the first, and as many as fit into a call
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newTestFlight()
				var all sync.WaitGroup
				const callers = 2000
				for range callers {
					all.Go(func() { f.ask(claim{}) })
					time.Sleep(tt.every)
				}
				all.Wait()
				each := callers / float64(len(f.sizes))
				assert.GreaterOrEqual(t, each, tt.least)
				assert.LessOrEqual(t, each, tt.most)
				assert.LessOrEqual(t, f.longest, tt.longest)
			})
		})
	}
}

// A call that waited in vain is not followed by another one that does.
func TestCallsWaitInVainOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newTestFlight()
		f.callers(5, 10, 0)
		f.longest = 0
		f.ask(claim{})
		require.Equal(t, gathering+oneCall, f.longest, "others came along just now")
		f.longest = 0
		f.ask(claim{})
		require.Equal(t, oneCall, f.longest)
	})
}

// Nobody who is in a hurry waits for company, nor do those that are with him.
func TestCallsLeaveWithWhoeverHurries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]claim{"urgent": {urgent: true}, "called": {request: Request{Called: true}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newTestFlight()
				f.callers(5, 10, 0)
				f.longest = 0
				var one sync.WaitGroup
				one.Go(func() { f.ask(claim{}) })
				synctest.Wait() // it waits for four others
				f.ask(c)
				one.Wait()
				assert.Equal(t, oneCall, f.longest)
				assert.Equal(t, 2, f.sizes[len(f.sizes)-1])
			})
		})
	}
}
