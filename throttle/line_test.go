package throttle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// forever is longer than any simulation.
const forever = 24 * time.Hour

func inLanes(limits ...policy.Limit) policy.Policy {
	return policy.Policy{Lane: "lane", Limits: limits}
}

// Laws 5, 6 and 7 for one lane: first in, first out, two attempts each, every token
// used, and nothing but the limits' own state is left.
func TestLineIsServedInOrder(t *testing.T) {
	simulate(t, 200, 40, policy.Policy{Limits: []policy.Limit{bucket("rate", 50, time.Second, 1)}}, func(t *testing.T, p *simulation, n int) {
		p.enqueue("", n)
		p.after(200*time.Millisecond, func() { // who could wait for a slot of its own joins
			p.wait = time.Minute
			p.ask("/999999", map[string]string{"lane": ""})
			p.wait = 0
		})
		p.run(forever)
		assert.IsIncreasing(t, p.order(""), "first in, first out")
		assert.Len(t, p.starts, n+1)
		p.isEven(0, time.Second/50)
		for task, asked := range p.asked {
			assert.LessOrEqual(t, asked, 2, task)
		}
		assert.LessOrEqual(t, p.wakes, n/5, "a call for several slots")
		assert.Empty(t, p.client.Keys(t.Context(), "rm:*/line*").Val(), "who has gone is forgotten")
	})
}

// Law 7 between lanes: one tenant's backlog delays another's first task by no more
// than its fair share does, and a newcomer's, too.
func TestLanesShareFairly(t *testing.T) {
	simulate(t, 500, 60, inLanes(bucket("rate", 100, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		p.enqueue("big", n)
		for _, lane := range []string{"a", "b", "c"} {
			p.enqueue(lane, n/10)
		}
		came := time.Duration(n) * 5 * time.Millisecond
		p.after(came, func() { p.enqueue("new", 10) })
		p.run(forever)
		assert.Len(t, p.starts, n+3*n/10+10)
		p.isEven(0, time.Second/100)
		p.isFair(map[string]float64{"big": 1, "a": 1, "b": 1, "c": 1})
		p.isFair(map[string]float64{"big": 1, "new": 1})
		for _, lane := range []string{"big", "a", "b", "c", "new"} {
			assert.IsIncreasing(t, p.order(lane))
		}
		// Only those who were woken already, and one more, come before a newcomer.
		assert.LessOrEqual(t, p.startsOf("new")[0], came+ahead)
	})
}

// The share is one of cost, not of tasks.
func TestSharesAreOfCost(t *testing.T) {
	limit := bucket("rate", 100, time.Second, 10)
	limit.Cost = "cost"
	simulate(t, 60, 10, inLanes(limit), func(t *testing.T, p *simulation, n int) {
		p.enqueue("dear", n, "cost", cost(10))
		p.enqueue("cheap", 10*n, "cost", cost(1))
		p.run(forever)
		assert.Len(t, p.starts, 11*n)
		p.isFair(map[string]float64{"dear": 10, "cheap": 1})
	})
}

// Dear tasks of a spacing start one right after the other, each for as long as it costs.
func TestDearTasksLeaveNoGap(t *testing.T) {
	limit := spacing("rate", 1, time.Second)
	limit.Cost = "cost"
	simulate(t, 30, 8, inLanes(limit), func(t *testing.T, p *simulation, n int) {
		p.enqueue("a", n, "cost", cost(5))
		p.enqueue("b", n, "cost", cost(5))
		p.run(forever)
		assert.Len(t, p.starts, 2*n)
		p.isEven(0, 5*time.Second)
		assert.LessOrEqual(t, p.attempts(), 2.0)
	})
}

// A lane of weight 3 gets three times the share of one of weight 1, whether the
// policy says so or its tasks do.
func TestWeightsOfLanes(t *testing.T) {
	lanes := inLanes(bucket("rate", 100, time.Second, 1))
	lanes.Weights, lanes.Weight = map[string]int64{"acme": 3}, "weight"
	simulate(t, 100, 20, lanes, func(t *testing.T, p *simulation, n int) {
		p.enqueue("acme", n)
		p.enqueue("other", n)
		p.enqueue("paying", n, "weight", "2")
		p.run(forever)
		p.isEven(0, time.Second/100)
		p.isFair(map[string]float64{"acme": 1. / 3, "other": 1, "paying": 1. / 2})
		_, err := p.limiter.Reserve(t.Context(), throttle.Request{
			Policy: "api", TaskID: "x", Park: true, Attributes: map[string]string{"lane": "a", "weight": "none"},
		})
		var unfit *policy.AttributeError
		require.ErrorAs(t, err, &unfit)
		assert.ErrorContains(t, err, `attribute "weight" is "none", not a weight from 1 to 1000: policy "api" uses it`)
	})
}

// A row whose own keys are exhausted is in nobody's way, and costs no calls.
func TestExhaustedKeysHoldNobodyElse(t *testing.T) {
	own := bucket("own", 5, time.Second, 1)
	own.Per = "lane"
	simulate(t, 20, 6, inLanes(own, bucket("all", 1000, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		lanes := strings.Split("a b c d e f g h i j", " ")
		for _, lane := range lanes {
			p.enqueue(lane, n)
		}
		p.run(forever)
		for i, lane := range lanes { // which take turns for the first tokens of all
			assert.IsIncreasing(t, p.order(lane))
			assert.Equal(t, time.Duration(n-1)*time.Second/5+time.Duration(i)*time.Millisecond, p.done(lane), lane)
		}
		assert.LessOrEqual(t, p.attempts(), 2.0)
		assert.LessOrEqual(t, p.wakes, 4*n)
	})
}

// The same within a lane: tasks of one lane that count at several keys.
func TestRowsOfALane(t *testing.T) {
	slow := bucket("own", 1, time.Second, 1)
	slow.Per = "key"
	simulate(t, 60, 30, inLanes(slow, bucket("all", 20, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		for i := range n {
			name, key := "x/"+cost(100+i), "slow"
			if i%3 > 0 {
				key = cost(i) // a key of its own
			}
			p.everybody[name] = map[string]string{"lane": "x", "key": key}
			p.ask(name, p.everybody[name])
		}
		p.run(forever)
		var slowOnes, others []string
		for _, task := range p.order("x") {
			if p.everybody[task]["key"] == "slow" {
				slowOnes = append(slowOnes, task)
			} else {
				others = append(others, task)
			}
		}
		assert.Len(t, slowOnes, n/3)
		assert.IsIncreasing(t, slowOnes)
		assert.IsIncreasing(t, others, "in the order of the lane, not of the rows")
		assert.Equal(t, time.Duration(n/3-1)*time.Second, p.done("x"))
	})
}

// Law 4: wakes that reach nobody are repeated, and deleted tasks make way.
func TestWakesAreRepeated(t *testing.T) {
	simulate(t, 200, 50, inLanes(bucket("rate", 50, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		p.isLost = func(string) bool { return p.random.IntN(5) == 0 }
		p.enqueue("a", n)
		for task := range p.everybody {
			if strings.HasSuffix(task, "7") {
				p.deleted[task] = true
			}
		}
		p.run(forever)
		started := map[string]bool{}
		for _, s := range p.starts {
			started[s.task] = true
		}
		for task := range p.everybody {
			assert.True(t, started[task] || p.deleted[task], task)
		}
		assert.Len(t, p.starts, len(started), "once each")
		assert.Less(t, p.done("a"), 20*time.Second)
	})
}

// Law 9: other numbers are in force for those in line, at the next call; those who
// were woken too early go back to their places.
func TestLineHeedsNewNumbers(t *testing.T) {
	rate := func(n int64) policy.Policy { return inLanes(bucket("rate", n, time.Second, 1)) }
	simulate(t, 400, 120, rate(10), func(t *testing.T, p *simulation, n int) {
		p.enqueue("a", n)
		faster, slower := time.Second, time.Second+time.Duration(n)*4*time.Millisecond
		p.after(faster, func() { p.update(rate(100)) })
		p.after(slower, func() { p.update(rate(10)) })
		p.run(forever)
		during := func(from, to time.Duration) (n int) {
			for _, s := range p.starts {
				if s.at >= from && s.at < to {
					n++
				}
			}
			return n
		}
		assert.Equal(t, 10, during(0, faster))
		assert.Equal(t, int((slower-faster-latency)/(10*time.Millisecond)), during(faster, slower), "at once")
		assert.Greater(t, p.done("a"), slower+ahead+time.Second)
		p.isEven(slower+ahead, time.Second/10)
		assert.IsIncreasing(t, p.order("a"), "nobody lost their place")
	})
}

// Law 9 for tasks that a limit of their own holds back for an hour: they are looked at
// anew, all of them, in their order.
func TestLineLooksAgainAtThoseHeldBack(t *testing.T) {
	each := func(n int64, period time.Duration) policy.Policy {
		limit := bucket("each", n, period, 1)
		limit.Per = "lane"
		return inLanes(limit)
	}
	simulate(t, 100, 25, each(1, time.Hour), func(t *testing.T, p *simulation, n int) {
		for i := range n {
			p.enqueue(fmt.Sprintf("%03d", i), 4)
		}
		p.after(2*time.Second, func() { p.update(each(20, time.Second)) })
		p.run(5 * time.Second)
		assert.Len(t, p.starts, 4*n)
		for i := range n {
			lane := fmt.Sprintf("%03d", i)
			assert.IsIncreasing(t, p.order(lane))
			assert.Less(t, p.done(lane), 3*time.Second, lane)
		}
	})
}

// A window's tasks are spread over it: no herd when it opens.
func TestNoHerdInAWindow(t *testing.T) {
	window := policy.Limit{Name: "w", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 50, Period: 5 * time.Second}}
	simulate(t, 200, 100, policy.Policy{Limits: []policy.Limit{window}}, func(t *testing.T, p *simulation, n int) {
		p.enqueue("", n)
		p.run(forever)
		assert.Len(t, p.starts, n)
		assert.LessOrEqual(t, throttletest.MaxPerWindow(p.times(), 5*time.Second, noon), 50)
		assert.Less(t, p.done(""), time.Duration(n/10)*time.Second, "all of each window")
		herd := 0
		for _, s := range p.starts {
			if s.at >= 5*time.Second && s.at%(5*time.Second) < 250*time.Millisecond {
				herd++
			}
		}
		assert.LessOrEqual(t, herd, (n/50-1)*6)
	})
}

// A task that comes back by itself while it stands in line keeps its place.
func TestPlaceIsKept(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Minute, 1)), func(t *testing.T, p *simulation) {
		p.enqueue("a", 10)
		again := p.reserve(inLane("a/000004", "a"))
		require.NotNil(t, again.Place)
		assert.Equal(t, int64(4), again.Place.Position, "the first has started")
		assert.Equal(t, "a", again.Place.Lane)
		assert.Equal(t, noon.UTC(), again.Place.Since.UTC().Truncate(time.Second))
		assert.Equal(t, noon.Add(4*time.Minute), again.Place.Expected.UTC())

		where, err := p.limiter.Where(t.Context(), again.Request())
		require.NoError(t, err)
		assert.Equal(t, &throttle.Standing{Place: *again.Place, HeldBy: "rate", Asked: 2}, where)
		elsewhere := again.Request()
		elsewhere.TaskID = "nobody"
		where, err = p.limiter.Where(t.Context(), elsewhere)
		require.NoError(t, err)
		assert.Nil(t, where)
	})
}

// Lanes of few tasks have large shares, whose sums are round numbers.
func TestSlowLanesAreServed(t *testing.T) {
	simulate(t, 20, 6, inLanes(bucket("rate", 1, time.Minute, 1)), func(t *testing.T, p *simulation, n int) {
		p.enqueue("a", n)
		p.run(forever)
		assert.Len(t, p.starts, n)
		p.isEven(0, time.Minute)
	})
}
