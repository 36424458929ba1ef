//go:build prove

package throttle

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// How soon those who wait for slots of a slower rate start, and in which order.
func TestProveRaisedRate(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		const slow, fast, all = 2, 50, 20
		server := throttletest.Redis(t)
		processes := []live{newLive(t, server, policies(perSecond(slow))), newLive(t, server, policies(perSecond(slow)))}
		var waiting sync.WaitGroup
		var mu sync.Mutex
		var started []int
		var times []time.Time
		for i := range all {
			r := processes[i%len(processes)].reserve(Request{MaxWait: time.Minute})
			require.Equal(t, Granted, r.Outcome)
			waiting.Go(func() {
				assert.NoError(t, r.Wait(t.Context()))
				mu.Lock()
				defer mu.Unlock()
				if started = append(started, i); i >= slow {
					times = append(times, time.Now())
				}
			})
		}
		updated := time.Now()
		for _, process := range processes {
			require.NoError(t, process.Update(policies(perSecond(fast))))
		}
		waiting.Wait()
		took := time.Since(updated)
		assert.LessOrEqual(t, throttletest.BurstSince(updated, times, fast, time.Second), slow, "no free refill")
		swapped := 0
		for i, task := range started {
			for _, before := range started[:i] {
				if before > task {
					swapped++
				}
			}
		}
		return []prove.Figure{
			prove.Took("all start at a raised rate, for which the old one would need nine seconds", took, 2*time.Second),
			prove.AtMost("pairs that start in another order", 100*float64(swapped)/(all*(all-1)/2), 25, "%"),
		}
	})
}
