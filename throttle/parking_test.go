package throttle_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// park is what a producer does with a task: it joins the line if others of its row are
// there, and asks like any other if not.
func (p *simulation) park(task string, attributes map[string]string) {
	p.t.Helper()
	p.everybody[task] = attributes
	request := throttle.Request{Policy: "api", TaskID: task, Attributes: attributes, MaxWait: p.wait}
	ahead, err := p.limiter.LookAhead(p.t.Context(), request)
	require.NoError(p.t, err)
	if ahead.Place == nil {
		p.ask(task, attributes)
		return
	}
	joined, err := p.limiter.Join(p.t.Context(), request, ahead.Place.Since)
	require.NoError(p.t, err)
	require.Equal(p.t, ahead.Place, joined.Place, "as was told")
	if p.idle {
		p.idle = false
		p.after(0, p.wake)
	}
}

// Law 5 and 7: whoever put a task into line, it is served in its turn; and who joined
// without asking asks once.
func TestThoseWhoJoinAreServedInOrder(t *testing.T) {
	simulate(t, 200, 50, inLanes(bucket("rate", 50, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		own := map[string]string{"lane": "a"}
		p.ask("a/000", own) // which starts at once
		p.ask("a/001", own) // and this one is in line
		for i := range n {
			name := fmt.Sprintf("a/%03d", i+2)
			if i%3 == 0 {
				p.everybody[name] = own
				p.ask(name, own)
			} else {
				p.park(name, own)
			}
		}
		p.everybody["a/001"] = own
		p.wait = time.Second
		p.park("b/000", map[string]string{"lane": "b"}) // nobody of its lane is ahead of it
		p.wait = 0
		p.run(forever)
		assert.Len(t, p.starts, n+3)
		assert.IsIncreasing(t, p.order("a"))
		assert.Less(t, p.done("b"), time.Second)
		for i := range n {
			asked := 1 // it was put into line
			if i%3 == 0 {
				asked = 2
			}
			assert.Equal(t, asked, p.asked[fmt.Sprintf("a/%03d", i+2)], i)
		}
		p.isEven(0, time.Second/50)
	})
}

// Law 2: to look ahead changes nothing.
func TestLookAheadChangesNothing(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Minute, 1)), func(t *testing.T, p *simulation) {
		p.enqueue("a", 3)
		before := p.contents()
		for _, lane := range []string{"a", "b"} {
			_, err := p.limiter.LookAhead(t.Context(), inLane("x", lane))
			require.NoError(t, err)
		}
		assert.Equal(t, before, p.contents())
	})
}

// contents is all that the server knows.
func (p *simulation) contents() map[string]any {
	p.t.Helper()
	client, ctx, all := p.client, p.t.Context(), map[string]any{}
	for _, key := range client.Keys(ctx, "rm:*").Val() {
		switch client.Type(ctx, key).Val() {
		case "zset":
			all[key] = client.ZRangeWithScores(ctx, key, 0, -1).Val()
		case "hash":
			all[key] = client.HGetAll(ctx, key).Val()
		default:
			all[key] = client.Get(ctx, key).Val()
		}
	}
	return all
}

// A task that joins when everybody has gone is woken at once: the dispatcher hears of
// it.
func TestJoiningAnEmptyLineIsHeard(t *testing.T) {
	eachStandby(t, inLanes(bucket("rate", 1, time.Minute, 1)), func(t *testing.T, s *standby) {
		joined, err := s.limiter.Join(t.Context(), inLane("x", "a"), time.Time{})
		require.NoError(t, err)
		assert.Equal(t, int64(1), joined.Place.Position)
		assert.Zero(t, joined.RetryAfter())
		assert.Equal(t, "api", hear(t, s.stirred))
		assert.Equal(t, []string{"x"}, s.wakes(0, 0))
	})
}

// Those who join together get a place each, and joining again does not move them.
func TestJoiningTogether(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Minute, 1)), func(t *testing.T, p *simulation) {
		join := func() (positions []int64) {
			positions = make([]int64, 100)
			var together sync.WaitGroup
			for i := range positions {
				together.Go(func() {
					joined, err := p.limiter.Join(t.Context(), inLane(cost(i), "a"), time.Time{})
					if assert.NoError(t, err) {
						positions[i] = joined.Place.Position
					}
				})
			}
			together.Wait()
			return positions
		}
		first := join()
		sorted := slices.Sorted(slices.Values(first))
		assert.Equal(t, int64(1), sorted[0])
		assert.Equal(t, int64(100), sorted[99])
		assert.Len(t, slices.Compact(sorted), 100)
		assert.Equal(t, first, join())
	})
}

// Who joins late stands where it came; but not where nobody can have come.
func TestWhoJoinsStandsWhereItCame(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Hour, 1)), func(t *testing.T, p *simulation) {
		for i := range 6 {
			p.at(time.Duration(i) * time.Minute / 2)
			p.ask(cost(i), map[string]string{"lane": "a"})
		}
		for _, c := range []struct {
			task     string
			since    time.Duration
			position int64
		}{
			{"seconds ago", 110 * time.Second, 4},
			{"more than a minute ago", 89 * time.Second, 7},
			{"ahead", 200 * time.Second, 8},
			{"seconds ago", 140 * time.Second, 4}, // it is there
		} {
			joined, err := p.limiter.Join(t.Context(), inLane(c.task, "a"), noon.Add(c.since))
			require.NoError(t, err)
			assert.Equal(t, c.position, joined.Place.Position, c.task)
		}
	})
}

// An urgent task is behind those that are urgent, too, and ahead of all others.
func TestUrgentTasksLookAhead(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Minute, 1)), func(t *testing.T, p *simulation) {
		p.enqueue("a", 5)
		request := throttle.Request{Policy: "api", TaskID: "a/x", Attributes: map[string]string{
			"lane": "a", policy.PriorityAttribute: policy.PriorityHigh,
		}}
		ahead, err := p.limiter.LookAhead(t.Context(), request)
		require.NoError(t, err)
		require.NotNil(t, ahead.Place)
		assert.Equal(t, int64(1), ahead.Place.Position)
		p.urgent("a", 1)
		ahead, err = p.limiter.LookAhead(t.Context(), request)
		require.NoError(t, err)
		require.NotNil(t, ahead.Place)
		assert.Equal(t, int64(2), ahead.Place.Position)
		joined, err := p.limiter.Join(t.Context(), request, ahead.Place.Since)
		require.NoError(t, err)
		assert.Equal(t, ahead.Place, joined.Place)
	})
}

func TestWhatCanNotJoin(t *testing.T) {
	t.Parallel()
	server := throttletest.Embedded(t)
	limit := bucket("rate", 1, time.Minute, 1)
	limit.Cost, limit.Per = "points", "key"
	p := newSimulation(t, server, policy.Policy{Limits: []policy.Limit{limit}})
	for name, step := range map[string]func(context.Context, throttle.Request) (throttle.Decision, error){
		"look ahead": p.limiter.LookAhead,
		"join": func(ctx context.Context, request throttle.Request) (throttle.Decision, error) {
			return p.limiter.Join(ctx, request, time.Time{})
		},
	} {
		request := throttle.Request{Policy: "api", TaskID: "a/x", Attributes: map[string]string{"key": "a", "points": "2"}}
		decision, err := step(t.Context(), request)
		require.NoError(t, err, name)
		assert.Equal(t, throttle.Never, decision.Outcome, name)
		request.Attributes = nil
		_, err = step(t.Context(), request)
		assert.ErrorAs(t, err, new(*policy.AttributeError), name)
		request.Policy = "none"
		_, err = step(t.Context(), request)
		assert.ErrorIs(t, err, throttle.ErrUnknownPolicy, name)
	}
	assert.Empty(t, p.client.Keys(t.Context(), "rm:*").Val())
}

func TestBackstop(t *testing.T) {
	t.Parallel()
	policy := policy.Policy{Limits: []policy.Limit{
		{Name: "rate", Algorithm: policy.TokenBucket}, {Name: "slots", Algorithm: policy.Concurrency},
	}}
	for _, c := range []struct {
		delay  time.Duration
		heldBy string
		want   time.Duration
	}{
		{0, "rate", 2 * time.Minute},
		{time.Minute, "rate", 3 * time.Minute},
		{time.Hour, "rate", 90 * time.Minute},
		{time.Hour, "", 90 * time.Minute},
		{time.Hour, "slots", 5 * time.Minute},
		{time.Second, "slots", 121 * time.Second},
		{math.MaxInt64, "rate", 45 * 366 * 24 * time.Hour},
	} {
		assert.Equal(t, c.want, policy.Backstop(c.delay, c.heldBy), "%v %s", c.delay, c.heldBy)
	}
}

func TestTaskNames(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"default", "a/b", "a%2Fb", " ä:{}", ""} {
		for _, id := range []string{"1", "a/b", "%2F", ""} {
			name := throttle.TaskName(queue, id)
			q, i, ok := throttle.ParseTaskName(name)
			assert.True(t, ok)
			assert.Equal(t, []string{queue, id}, []string{q, i}, name)
		}
	}
	for _, name := range []string{"", "default", "%zz/1"} {
		_, _, ok := throttle.ParseTaskName(name)
		assert.False(t, ok, name)
	}
}
