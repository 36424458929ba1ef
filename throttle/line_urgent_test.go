package throttle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// urgent lets n urgent tasks of a lane ask, one after the other.
func (p *simulation) urgent(lane string, n int) {
	p.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s/urgent%06d", lane, i)
		p.everybody[name] = map[string]string{"lane": lane, policy.PriorityAttribute: policy.PriorityHigh}
		p.ask(name, p.everybody[name])
	}
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
	for lane, attribute := range map[string]string{"": "", "a": "lane"} {
		t.Run("lane "+lane, func(t *testing.T) {
			policy := policy.Policy{Lane: attribute, Limits: []policy.Limit{bucket("rate", 50, time.Second, 1)}}
			simulate(t, 200, 60, policy, func(t *testing.T, p *simulation, n int) {
				p.enqueue(lane, n)
				p.after(time.Second/2, func() { p.urgent(lane, 10) })
				p.run(forever)
				require.Len(t, p.starts, n+10)
				isNormal := func(task string) bool { return !strings.Contains(task, "urgent") }
				assert.IsIncreasing(t, slices.DeleteFunc(p.order(lane), isNormal))
				assert.IsIncreasing(t, slices.DeleteFunc(p.order(lane), func(task string) bool { return !isNormal(task) }))
				starts := p.startsOf("urgent")
				// Those that were woken already come before them.
				assert.LessOrEqual(t, starts[len(starts)-1], time.Second/2+ahead+10*time.Second/50)
				assert.LessOrEqual(t, p.attempts(), 2.0)
				p.isEven(0, time.Second/50)
			})
		})
	}
}

// What urgent tasks take counts to their lane's share: they starve no other lane.
func TestUrgentTasksAreOfTheirLane(t *testing.T) {
	simulate(t, 200, 30, inLanes(bucket("rate", 100, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		p.enqueue("patient", n)
		p.urgent("hasty", 2*n)
		p.run(forever)
		assert.Len(t, p.starts, 3*n)
		p.isFair(map[string]float64{"patient": 1, "hasty": 1})
	})
}

// What is kept for urgent tasks is theirs at once, whoever is in line and whose turn it
// is; others never take it, and nothing is polled for it.
func TestHeadroomInLine(t *testing.T) {
	limit := window("w", 20, 5*time.Second, policy.AnchorClock)
	limit.Headroom.Percent = 20
	eachSimulation(t, inLanes(limit), func(t *testing.T, p *simulation) {
		p.enqueue("a", 40)
		p.enqueue("b", 40)
		p.after(6*time.Second, func() { p.urgent("c", 1) })
		p.after(12500*time.Millisecond, func() { p.urgent("d", 8) })
		p.run(forever)
		require.Len(t, p.starts, 89)

		urgent, normal := p.startsOf("urgent"), append(p.startsOf("a/0"), p.startsOf("b/0")...)
		assert.Equal(t, 6*time.Second, urgent[0], "at once")
		inWindow := map[time.Duration]int{}
		for _, at := range normal {
			inWindow[at.Truncate(5*time.Second)]++
		}
		for window, started := range inWindow {
			assert.LessOrEqual(t, started, 16, window)
		}
		early := 0
		for _, at := range urgent[1:] {
			if at < 15*time.Second {
				early++
			}
		}
		assert.GreaterOrEqual(t, early, 4, "all that is kept, within the window")
		assert.Less(t, p.done("d"), 20*time.Second)
		assert.LessOrEqual(t, throttletest.MaxPerWindow(p.times(), 5*time.Second, noon), 20)
		assert.LessOrEqual(t, p.attempts(), 2.1)
		assert.LessOrEqual(t, p.wakes, 80)
	})
}

// Who stands in line is not woken for what is kept, to be denied then.
func TestNobodyIsWokenForHeadroom(t *testing.T) {
	for kind, limit := range keeping() {
		if limit.Algorithm == policy.Concurrency {
			continue // see TestNobodyIsWokenForSlotsThatAreKept
		}
		t.Run(kind, func(t *testing.T) {
			eachSimulation(t, inLanes(limit), func(t *testing.T, p *simulation) {
				p.enqueue("a", 20)
				p.enqueue("b", 20)
				p.run(forever)
				assert.Len(t, p.starts, 40)
				assert.LessOrEqual(t, p.attempts(), 2.0)
			})
		})
	}
}

func TestNobodyIsWokenForSlotsThatAreKept(t *testing.T) {
	slots := slotLimit(3)
	slots.Headroom.Tokens = 1
	eachStandby(t, policy.Policy{Limits: []policy.Limit{slots}}, func(t *testing.T, s *standby) {
		a, b := s.starts("a"), s.starts("b")
		s.isParked("c")
		s.isParked("d")
		assert.Empty(t, s.wakes(0, time.Second), "the third is kept")
		require.NoError(t, a.Release(t.Context()))
		assert.Equal(t, []string{"c"}, s.wakes(0, time.Second))
		s.starts("c")
		require.NoError(t, b.Release(t.Context()))
		assert.Equal(t, []string{"d"}, s.wakes(0, time.Second))
	})
}

// The tokens of a bucket that keeps some come at its whole rate: only as many as are
// kept stay in it.
func TestHeadroomCostsABucketNoRate(t *testing.T) {
	limit := bucket("rate", 50, time.Second, 10)
	limit.Headroom.Tokens = 5
	simulate(t, 300, 60, inLanes(limit), func(t *testing.T, p *simulation, n int) {
		p.enqueue("a", n)
		p.run(forever)
		assert.Len(t, p.starts, n)
		assert.Equal(t, time.Duration(n-5)*time.Second/50, p.done("a"))
		assert.Equal(t, 5, throttletest.MaxBurst(p.times(), 50, time.Second))
		assert.LessOrEqual(t, p.attempts(), 2.0)
	})
}
