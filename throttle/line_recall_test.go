package throttle_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// Whatever tasks stand in line by, an update may have them stand there by something else:
// nobody is lost or stuck, those of a new lane start in the order in which they came, and
// none asks more than once more than others.
func TestLineIsMadeAnew(t *testing.T) {
	t.Parallel()
	per := func(attribute string) policy.Limit {
		limit := bucket("each", 40, time.Second, 1)
		limit.Per = attribute
		return limit
	}
	costly := bucket("rate", 100, time.Second, 10)
	costly.Cost = "cost"
	all := bucket("rate", 100, time.Second, 10)
	for name, test := range map[string]struct{ before, after policy.Policy }{
		"lanes come":              {policy.Policy{Limits: []policy.Limit{all}}, inLanes(all)},
		"lanes go":                {inLanes(all), policy.Policy{Limits: []policy.Limit{all}}},
		"other lanes":             {policy.Policy{Limits: []policy.Limit{all}, Lane: "group"}, inLanes(all)},
		"keys come":               {inLanes(all), inLanes(all, per("group"))},
		"other keys":              {policy.Policy{Limits: []policy.Limit{per("lane")}}, policy.Policy{Limits: []policy.Limit{per("group")}}},
		"keys go":                 {inLanes(all, per("group")), inLanes(all)},
		"costs come":              {inLanes(all), inLanes(costly)},
		"costs go, and lanes too": {inLanes(costly), policy.Policy{Limits: []policy.Limit{all}}},
		"a limit more":            {inLanes(all), inLanes(all, bucket("more", 50, time.Second, 1))},
		"another order of limits": {inLanes(per("group"), all), inLanes(all, per("group"))},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 40, 15, test.before, func(t *testing.T, p *simulation, each int) {
				const lanes = 4
				for i := range each { // in turn, so that all lanes came at the same time
					for lane := range lanes {
						name := fmt.Sprintf("%d/%04d", lane, i)
						p.everybody[name] = map[string]string{"lane": fmt.Sprint(lane), "group": fmt.Sprint(i % 3), "cost": cost(1 + i%2)}
						p.ask(name, p.everybody[name])
					}
				}
				p.after(time.Second/10, func() { p.update(test.after) })
				p.run(forever)

				require.Len(t, p.starts, lanes*each, "all have started, each once")
				for name, asked := range p.asked {
					assert.LessOrEqual(t, asked, 4, name)
				}
				assert.Empty(t, p.client.Keys(t.Context(), "rm:*/line*").Val(), "who has gone is forgotten")
				if line.CostAttributes(&test.before) != line.CostAttributes(&test.after) {
					return // who costs something else comes behind the others
				}
				for lane := range lanes {
					order := p.order(fmt.Sprint(lane))
					// A row that lacks a token of its own lets others of its lane go first, until
					// the next call.
					assert.LessOrEqual(t, displaced(order), 2, "lane %d: %v", lane, order)
				}
			})
		})
	}
}

// displaced is how far tasks are from their places in order, at most.
func displaced(names []string) (most int) {
	sorted := slices.Sorted(slices.Values(names))
	for i, name := range names {
		at := slices.Index(sorted, name)
		most = max(most, at-i, i-at)
	}
	return most
}

// A line is left alone as long as somebody serves it, and taken over by who served it.
func TestLineIsRecalledWhenNobodyServesIt(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Hour, 1)), func(t *testing.T, p *simulation) {
		p.enqueue("a", 140)
		wake := func(as string) line.Waking { return line.Waking{As: as, Near: time.Second} }
		_, err := p.limiter.Line("api").Wake(t.Context(), wake("other"))
		require.NoError(t, err)
		p.config(policy.Policy{Limits: []policy.Limit{bucket("rate", 1, time.Hour, 1)}})

		call, err := p.limiter.Line("api").Recall(t.Context(), wake("us"))
		require.NoError(t, err)
		assert.False(t, call.Leads)
		assert.Empty(t, call.Tasks)
		assert.Positive(t, call.Next)

		call, err = p.limiter.Line("api").Recall(t.Context(), wake("other"))
		require.NoError(t, err)
		assert.True(t, call.Leads)
		require.Len(t, call.Tasks, 128, "so many at a time")
		assert.Equal(t, "a/000001", call.Tasks[0].TaskID, "the first that has not started")
		enough, err := p.limiter.Line("api").Recall(t.Context(), wake("us"))
		require.NoError(t, err)
		assert.Empty(t, enough.Tasks, "so many are on their way")
		assert.Positive(t, enough.Next)

		place, late := p.reserve(inLane("a/000100", "a")), p.reserve(inLane("a/000050", "a"))
		assert.Equal(t, int64(1), place.Place.Position)
		assert.Equal(t, int64(1), late.Place.Position, "it came before")
	})
}

// The tasks of a policy that is gone are woken, all of them.
func TestLineOfARemovedPolicyIsRecalled(t *testing.T) {
	eachSimulation(t, inLanes(bucket("rate", 1, time.Hour, 1)), func(t *testing.T, p *simulation) {
		p.enqueue("a", 100)
		p.enqueue("b", 50)
		require.NoError(t, p.limiter.Update(&policy.Config{Policies: []policy.Policy{{
			Name: "other", Limits: []policy.Limit{bucket("rate", 1, time.Hour, 1)},
		}}}))
		woken := map[string]bool{}
		for call := (line.Call{Next: 1}); call.Next > 0; {
			var err error
			call, err = p.limiter.Line("api").Recall(t.Context(), line.Waking{As: "us"})
			require.NoError(t, err)
			for _, task := range call.Tasks {
				assert.False(t, woken[task.TaskID], "once")
				woken[task.TaskID] = true
			}
		}
		assert.Len(t, woken, 149, "but for the one that has started")
		assert.Empty(t, p.client.Keys(t.Context(), "rm:*/line*").Val(), "who has gone is forgotten")
	})
}

// Nothing but a recall is answered for a policy that is not in force.
func TestLineOfAnUnknownPolicy(t *testing.T) {
	t.Parallel()
	server := throttletest.Embedded(t)
	unknown := newLimiter(t, server.Client(), "api", bucket("rate", 1, time.Hour, 1)).Line("gone")
	for name, call := range map[string]func() error{
		"wake":     func() error { _, err := unknown.Wake(t.Context(), line.Waking{As: "us"}); return err },
		"review":   func() error { return unknown.Review(t.Context()) },
		"expected": func() error { _, err := unknown.AreExpected(t.Context(), line.WokenTask{}); return err },
		"listen":   func() error { _, err := unknown.Listeners(t.Context()); return err },
	} {
		require.ErrorIs(t, call(), throttle.ErrUnknownPolicy, name)
	}
	call, err := unknown.Recall(t.Context(), line.Waking{As: "us"})
	require.NoError(t, err)
	assert.Equal(t, line.Call{Leads: true}, call)
	require.NoError(t, unknown.CallTask(t.Context(), "default/1"))
}
