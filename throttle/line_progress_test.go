package throttle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Law 6 at any speed: nothing of the line's caps what a limit allows.
func TestFastLinesUseTheirQuota(t *testing.T) {
	const rate = 5000
	simulate(t, 6000, 1500, inLanes(bucket("rate", rate, time.Second, rate/10)), func(t *testing.T, p *simulation, n int) {
		for i := range 10 {
			p.enqueue(fmt.Sprint(i), n/10)
		}
		p.run(forever)
		require.Len(t, p.starts, n)
		ideal := time.Duration(n-rate/10) * time.Second / rate
		assert.LessOrEqual(t, p.starts[n-1].at, ideal+ideal/100+latency, "99 %, but for the first who ask")
		assert.LessOrEqual(t, p.attempts(), 2.0)
	})
}

// Law 13: tasks that are woken and never ask, as those of a paused queue, cost nobody but
// their own lane, whatever their number.
func TestSilentTasksCostNobodyElse(t *testing.T) {
	for name, rate := range map[string]int64{"fast": 50, "slow": 1} {
		t.Run(name, func(t *testing.T) {
			simulate(t, 400, 60, inLanes(bucket("rate", rate, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
				p.isLost = func(task string) bool { return strings.HasPrefix(task, "silent/") }
				p.enqueue("silent", n)
				p.enqueue("other", n)
				p.run(time.Duration(2*n) * time.Second)
				others := p.startsOf("other/")
				require.Len(t, others, n)
				// A slot is lost only while it is believed to be taken by a silent task that was just
				// woken: for twice near, and each time after a rest twice as long, up to 64 times that.
				every, waits := time.Second/time.Duration(rate), 0
				for i := 1; i < n; i++ {
					if gap := others[i] - others[i-1]; gap > every+time.Millisecond {
						assert.LessOrEqual(t, gap, every+2*near+latency, "before %s", others[i])
						waits++
					}
				}
				assert.LessOrEqual(t, waits, 8+int(others[n-1]/(64*2*near)))
				alone := time.Duration(n) * every
				assert.LessOrEqual(t, others[n-1], alone+time.Duration(waits)*2*near+latency)
				assert.LessOrEqual(t, p.wakes, 30*n, "and few calls")
			})
		})
	}
}

// The same where they came before others of their lane, in a queue of their own.
func TestSilentQueuesCostNoOtherQueue(t *testing.T) {
	simulate(t, 300, 50, policy.Policy{Limits: []policy.Limit{bucket("rate", 50, time.Second, 1)}}, func(t *testing.T, p *simulation, n int) {
		p.isLost = func(task string) bool { return strings.HasPrefix(task, "paused/") }
		for i := range n {
			for _, queue := range []string{"paused", "served"} {
				name := fmt.Sprintf("%s/%06d", queue, i)
				p.everybody[name] = map[string]string{}
				p.ask(name, nil)
			}
		}
		p.run(time.Hour)
		served := p.startsOf("served/")
		require.Len(t, served, n)
		assert.LessOrEqual(t, served[n-1], time.Duration(n)*time.Second/50+2*time.Second)
		// Once the queue is served again, all run.
		p.isLost = func(string) bool { return false }
		p.ask("paused/000001", nil)
		p.run(2 * time.Hour)
		assert.Len(t, p.starts, 2*n)
	})
}

// Law 13: tenants that have nothing left cost no other tenant anything, whatever their
// number: one that has tokens is served at once, though its tasks stand behind theirs.
func TestExhaustedTenantsCostNobodyElse(t *testing.T) {
	own := bucket("own", 2, time.Hour, 2)
	own.Per = "lane"
	simulate(t, 3000, 200, inLanes(own, bucket("all", 100_000, time.Second, 100_000)), func(t *testing.T, p *simulation, n int) {
		for i := range n {
			p.enqueue(fmt.Sprintf("t%04d", i), 2) // which start
		}
		require.NoError(t, p.limiter.Freeze(t.Context(), "api", time.Second))
		for i := range n { // and others, of which nobody knows yet that they have nothing left
			lane := fmt.Sprintf("t%04d", i)
			p.everybody[lane+"/more"] = map[string]string{"lane": lane}
			p.ask(lane+"/more", p.everybody[lane+"/more"])
		}
		p.enqueue("untouched", 3) // behind them by its name, too
		p.run(10 * time.Second)
		fresh := p.startsOf("untouched/")
		require.Len(t, fresh, 2, "its own tokens")
		assert.LessOrEqual(t, fresh[1], time.Second+latency, "as soon as the policy is open")
		assert.LessOrEqual(t, p.attempts(), 2.0)
	})
}

// Law 4: a row that nothing lists any more, as its list was lost, is listed again once one of
// its tasks asks without having been woken; and the tasks keep their order.
func TestLostListsAreMadeAgain(t *testing.T) {
	simulate(t, 40, 15, inLanes(bucket("rate", 50, time.Second, 1)), func(t *testing.T, p *simulation, n int) {
		p.enqueue("a", n)
		lists := p.client.Keys(t.Context(), "rm:*/rows:*").Val()
		require.NotEmpty(t, lists)
		require.NoError(t, p.client.Del(t.Context(), append(lists, p.limiter.Line("api").Key+"/ready")...).Err())
		p.ask("a/000007", p.everybody["a/000007"])
		p.run(forever)
		require.Len(t, p.starts, n)
		assert.IsIncreasing(t, p.order("a"))
	})
}
