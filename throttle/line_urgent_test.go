package throttle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// urgent lets n urgent tasks of a lane ask, one after the other.
func (p *simulation) urgent(all tasks, lane string, n int) {
	p.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s/urgent%06d", lane, i)
		all[name] = map[string]string{"lane": lane, throttle.PriorityAttribute: throttle.PriorityHigh}
		p.ask(name, all[name])
	}
	p.everybody = all
}

// startsOf returns when tasks started whose names have that in them.
func (p *simulation) startsOf(part string) (starts []time.Duration) {
	for _, s := range p.starts {
		if strings.Contains(s.task, part) {
			starts = append(starts, s.at)
		}
	}
	return starts
}

// Urgent tasks go ahead of those of their lane, which keep their order and all of
// which run.
func TestUrgentTasksGoAhead(t *testing.T) {
	t.Parallel()
	simulate(t, 200, 60, func(t *testing.T, server *throttletest.Server, n int) {
		for _, lane := range []string{"", "a"} {
			require.NoError(t, server.Client().FlushDB(t.Context()).Err())
			policy := throttle.Policy{Limits: []throttle.Limit{bucket("rate", 50, time.Second, 1)}}
			if lane != "" {
				policy.Lane = "lane"
			}
			p := newSimulation(t, server, policy)
			all := tasks{}
			p.enqueue(all, lane, n)
			p.after(time.Second/2, func() { p.urgent(all, lane, 10) })
			p.run(forever)
			require.Len(t, p.starts, n+10)
			var normal, urgent []string
			for _, task := range p.order(lane) {
				if strings.Contains(task, "urgent") {
					urgent = append(urgent, task)
				} else {
					normal = append(normal, task)
				}
			}
			assert.IsIncreasing(t, normal)
			assert.IsIncreasing(t, urgent)
			starts := p.startsOf("urgent")
			// Those that were woken already come before them.
			assert.LessOrEqual(t, starts[len(starts)-1], time.Second/2+ahead+10*time.Second/50)
			assert.LessOrEqual(t, p.attempts(), 2.0)
			p.isEven(0, time.Second/50)
		}
	})
}

// What urgent tasks take counts to their lane's share: they starve no other lane.
func TestUrgentTasksAreOfTheirLane(t *testing.T) {
	t.Parallel()
	simulate(t, 200, 30, func(t *testing.T, server *throttletest.Server, n int) {
		p := newSimulation(t, server, inLanes(bucket("rate", 100, time.Second, 1)))
		all := tasks{}
		p.enqueue(all, "patient", n)
		p.urgent(all, "hasty", 2*n)
		p.run(forever)
		assert.Len(t, p.starts, 3*n)
		p.isFair(map[string]float64{"patient": 1, "hasty": 1})
	})
}

// What is kept for urgent tasks is theirs at once, whoever is in line and whose turn it
// is; others never take it, and nothing is polled for it.
func TestHeadroomInLine(t *testing.T) {
	t.Parallel()
	simulate(t, 200, 40, func(t *testing.T, server *throttletest.Server, n int) {
		limit := window("w", int64(n)/2, 5*time.Second, throttle.AnchorClock)
		limit.Headroom.Percent = 20
		p := newSimulation(t, server, inLanes(limit))
		all := tasks{}
		p.enqueue(all, "a", n)
		p.enqueue(all, "b", n)
		p.after(6*time.Second, func() { p.urgent(all, "c", n/40) })
		p.after(12500*time.Millisecond, func() { p.urgent(all, "d", n/5) })
		p.run(forever)
		require.Len(t, p.starts, 2*n+n/40+n/5)

		urgent, normal := p.startsOf("urgent"), append(p.startsOf("a/0"), p.startsOf("b/0")...)
		for _, at := range urgent[:n/40] {
			assert.Equal(t, 6*time.Second, at, "at once")
		}
		inWindow := map[time.Duration]int{}
		for _, at := range normal {
			inWindow[at.Truncate(5*time.Second)]++
		}
		for window, started := range inWindow {
			assert.LessOrEqual(t, started, n*2/5, window)
		}
		early := 0
		for _, at := range urgent[n/40:] {
			if at < 15*time.Second {
				early++
			}
		}
		assert.GreaterOrEqual(t, early, n/10, "all that is kept, within the window")
		assert.Less(t, p.done("d"), 20*time.Second)
		assert.LessOrEqual(t, throttletest.MaxPerWindow(p.times(), 5*time.Second, noon), n/2)
		assert.LessOrEqual(t, p.attempts(), 2.1)
		assert.LessOrEqual(t, p.wakes, 2*n)
	})
}

// The tokens of a bucket that keeps some come at its whole rate: only as many as are
// kept stay in it.
func TestHeadroomCostsABucketNoRate(t *testing.T) {
	t.Parallel()
	simulate(t, 300, 60, func(t *testing.T, server *throttletest.Server, n int) {
		limit := bucket("rate", 50, time.Second, 10)
		limit.Headroom.Tokens = 5
		p := newSimulation(t, server, inLanes(limit))
		p.enqueue(tasks{}, "a", n)
		p.run(forever)
		assert.Len(t, p.starts, n)
		assert.Equal(t, time.Duration(n-5)*time.Second/50, p.done("a"))
		assert.Equal(t, 5, throttletest.MaxBurst(p.times(), 50, time.Second))
		assert.LessOrEqual(t, p.attempts(), 2.0)
	})
}
