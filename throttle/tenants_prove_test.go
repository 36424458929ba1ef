//go:build prove

package throttle_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Law 13 for as many tenants as there may be: beside all those that have nothing left, and
// stand in line, one that has tokens is served at once, whether it comes to a line that
// sleeps or to one in which all are looked at.
func TestProveExhaustedTenantsCostNobodyElse(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	own := bucket("own", 1, time.Hour, 1)
	own.Per = "lane"
	p := newSimulation(t, throttletest.Redis(t), inLanes(own, bucket("all", 1_000_000, time.Second, 1_000_000)))
	each := func(every int, task string) {
		byMany(n/every, func(i int) {
			lane := fmt.Sprintf("t%06d", every*i)
			_, err := p.limiter.Reserve(t.Context(), inLane(lane+"/"+task, lane))
			assert.NoError(t, err)
		})
	}
	each(1, "first") // which start
	each(2, "second")
	p.enqueue("fresh", 1)
	require.Len(t, p.startsOf("fresh/"), 1, "nobody is before it")

	// While the policy is closed, nobody knows of those who come that they have nothing left.
	require.NoError(t, p.limiter.Freeze(t.Context(), "api", time.Second))
	each(1, "third")
	p.enqueue("untouched", 1) // behind them by its name, too
	require.Empty(t, p.startsOf("untouched/"))
	p.wakes, p.idle = 0, false
	p.after(0, p.wake)
	p.run(3 * time.Second)
	untouched := p.startsOf("untouched/")
	require.Len(t, untouched, 1)
	assert.LessOrEqual(t, untouched[0], time.Second+latency, "as soon as the policy is open")
	t.Logf("%d tenants, %d calls of wake", n, p.wakes)
	assert.LessOrEqual(t, p.wakes, n/500+50)
}

// byMany does something so many times, by many at a time.
func byMany(n int, do func(i int)) {
	numbers := make(chan int)
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			for i := range numbers {
				do(i)
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	all.Wait()
}
