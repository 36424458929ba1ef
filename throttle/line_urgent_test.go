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
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		for _, lane := range []string{"", "a"} {
			require.NoError(t, server.Client().FlushDB(t.Context()).Err())
			policy := throttle.Policy{Limits: []throttle.Limit{bucket("rate", 50, time.Second, 1)}}
			if lane != "" {
				policy.Lane = "lane"
			}
			p := newSimulation(t, server, policy)
			all := tasks{}
			p.enqueue(all, lane, 200)
			p.after(time.Second, func() { p.urgent(all, lane, 10) })
			p.run(forever)
			require.Len(t, p.starts, 210)
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
			assert.Less(t, starts[len(starts)-1], 1900*time.Millisecond)
			assert.LessOrEqual(t, p.attempts(), 2.1)
			assert.InDelta(t, 1, throttletest.Used(p.times(), 1, 50, time.Second), 0.01)
			assert.Equal(t, 1, throttletest.MaxBurst(p.times(), 50, time.Second))
		}
	})
}

// What urgent tasks take counts to their lane's share: they starve no other lane.
func TestUrgentTasksAreOfTheirLane(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		p := newSimulation(t, server, inLanes(bucket("rate", 100, time.Second, 1)))
		all := tasks{}
		p.enqueue(all, "patient", 200)
		p.urgent(all, "hasty", 400)
		p.run(forever)
		assert.Len(t, p.starts, 600)
		// Half of the rate each, besides those that the first lane had to itself.
		assert.InDelta(t, 4, p.done("patient").Seconds(), 0.5)
	})
}

// What is kept for urgent tasks is theirs at once, whoever is in line and whose turn it
// is; others never take it, and nothing is polled for it.
func TestHeadroomInLine(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limit := window("w", 100, 5*time.Second, throttle.AnchorClock)
		limit.Headroom.Percent = 20
		p := newSimulation(t, server, inLanes(limit))
		all := tasks{}
		p.enqueue(all, "a", 200)
		p.enqueue(all, "b", 200)
		p.after(6*time.Second, func() { p.urgent(all, "c", 5) })
		p.after(12500*time.Millisecond, func() { p.urgent(all, "d", 40) })
		p.run(forever)
		require.Len(t, p.starts, 445)

		urgent, normal := p.startsOf("urgent"), append(p.startsOf("a/0"), p.startsOf("b/0")...)
		for _, at := range urgent[:5] {
			assert.Equal(t, 6*time.Second, at, "at once")
		}
		inWindow := map[time.Duration]int{}
		for _, at := range normal {
			inWindow[at.Truncate(5*time.Second)]++
		}
		for window, n := range inWindow {
			assert.LessOrEqual(t, n, 80, window)
		}
		early := 0
		for _, at := range urgent[5:] {
			if at < 15*time.Second {
				early++
			}
		}
		assert.GreaterOrEqual(t, early, 20, "all that is kept, within the window")
		assert.Less(t, p.done("d"), 20*time.Second)
		assert.LessOrEqual(t, throttletest.MaxPerWindow(p.times(), 5*time.Second, noon), 100)
		assert.LessOrEqual(t, p.attempts(), 2.1)
		assert.Less(t, p.wakes, 400)
	})
}

// The tokens of a bucket that keeps some come at its whole rate: only as many as are
// kept stay in it.
func TestHeadroomCostsABucketNoRate(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limit := bucket("rate", 50, time.Second, 10)
		limit.Headroom.Tokens = 5
		p := newSimulation(t, server, inLanes(limit))
		p.enqueue(tasks{}, "a", 300)
		p.run(forever)
		assert.Len(t, p.starts, 300)
		assert.InDelta(t, (300-5)/50.0, p.done("a").Seconds(), 0.1)
		assert.Equal(t, 5, throttletest.MaxBurst(p.times(), 50, time.Second))
		assert.LessOrEqual(t, p.attempts(), 2.0)
	})
}
