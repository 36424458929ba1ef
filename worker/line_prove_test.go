//go:build prove

package worker_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// stepsBack is how many of one tenant's tasks ran after one that came much later.
func stepsBack(ran []string, far int) (n int) {
	for i := 1; i < len(ran); i++ {
		before, _ := strconv.Atoi(ran[i-1][len("a/"):])
		number, _ := strconv.Atoi(ran[i][len("a/"):])
		if number < before-far {
			n++
		}
	}
	return n
}

// Laws 5 to 7 for a backlog that nobody has in line yet.
func TestProveBacklog(t *testing.T) {
	big := 4000
	if testing.Short() {
		big /= 10
	}
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		r := newTestServer(t, throttletest.Redis(t), policy.Policy{Limits: perSecond(100, 1), Lane: "tenant"})
		n := r.enqueueBacklog(big, 10)
		all := newJournal()
		began := time.Now()
		attempts := r.serveTwo(all)
		all.wait(t, n)
		r.allEnd()
		require.Len(t, all.tasks, n)
		require.LessOrEqual(t, throttletest.BurstSince(began, all.times, 100, time.Second), 1)
		var small time.Time
		for i, task := range all.tasks {
			if !strings.HasPrefix(task, "big/") {
				small = all.times[i]
			}
		}
		return []prove.Figure{
			prove.Took("a big tenant's backlog delays three small ones' last tasks by", small.Sub(all.times[0]), 3*time.Second),
			prove.AtLeast("quota used", throttletest.Used(all.times, 1, 100, time.Second), 0.9, ""),
			prove.AtMost("attempts per task", float64(attempts.Load())/float64(n), 2.1, ""),
		}
	})
}

// reachBy has servers reach Redis, for tasks and limits, at that address.
func (r *testServer) reachBy(addr string) {
	r.t.Helper()
	r.redis.Addr = addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	r.t.Cleanup(func() { _ = client.Close() })
	limiter, err := throttle.New(client, r.limiter.Config())
	require.NoError(r.t, err)
	r.limiter = limiter
}

// Law 6 for tasks that are parked, at speeds and in places where wakes are many or slow:
// 10 tenants' tasks, two servers with asynq's own intervals.
func TestProveFastLines(t *testing.T) {
	lasts := 8 * time.Second
	if testing.Short() {
		lasts /= 4
	}
	for _, test := range []struct {
		what string
		rate int64
		away time.Duration // Redis, there and back
	}{
		{"at 400/s", 400, 0},
		{"at 1000/s", 1000, 0},
		{"at 300/s, 3 ms from Redis", 300, 3 * time.Millisecond},
	} {
		t.Run(test.what, func(t *testing.T) {
			prove.Figures(t, func(t *testing.T) []prove.Figure {
				server := throttletest.Redis(t)
				r := newTestServer(t, server, policy.Policy{Limits: perSecond(test.rate, test.rate/10), Lane: "tenant", MaxWait: -1})
				n := int(test.rate * int64(lasts/time.Second))
				r.freeze()
				r.enqueueFor(n, strings.Split("a b c d e f g h i j", " ")...)
				proxy := throttletest.NewProxy(t, server.Addr())
				r.reachBy(proxy.Addr())
				all := newJournal()
				attempts := r.serveTwo(all)
				r.parked(n)
				proxy.Delay(test.away / 2)
				opened := r.open()
				all.wait(t, n)
				require.LessOrEqual(t, throttletest.BurstSince(opened, all.times, test.rate, time.Second), int(test.rate/10))
				return []prove.Figure{
					prove.AtLeast("quota used", throttletest.Used(all.times, test.rate/10, test.rate, time.Second), 0.95, ""),
					prove.AtMost("attempts per task", float64(attempts.Load())/float64(n), 2.1, ""),
				}
			})
		})
	}
}

// Laws 5 to 7 for slots: without standing by, half of their time is used.
func TestProveSlotsBusy(t *testing.T) {
	const slots = 4
	tasks := 1600
	if testing.Short() {
		tasks /= 10
	}
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		r := newTestServer(t, throttletest.Redis(t), policy.Policy{Limits: atOnce(slots), Lane: "tenant", MaxWait: -1})
		r.enqueueFor(tasks, "a")
		all := newJournal()
		attempts := r.serveTwo(lasting(all))
		all.wait(t, tasks)
		r.allEnd()
		took := all.times[tasks-1].Sub(all.times[0]) + lasts
		return []prove.Figure{
			prove.AtLeast("slots busy", float64(lasts)*float64(tasks)/float64(slots*took), 0.75, "of their time"),
			prove.AtMost("tasks behind one that came much later", float64(stepsBack(all.tasks, 2*slots))/float64(tasks), 0.1, "of all"),
			prove.AtMost("attempts per task", float64(attempts.Load())/float64(tasks), 2.1, ""),
		}
	})
}

// How soon what is to happen does.
func TestProveHowSoon(t *testing.T) {
	for _, test := range []struct {
		what  string
		bound time.Duration
		took  scenario
	}{
		{"a task of another kind runs beside those that stand by", time.Second, runOthers},
		{"a freed slot wakes the next", time.Second, freeSlot},
		{"an update reaches a task that waits in its worker", time.Second, updateTaskThatWaits},
		{"40 tasks of an added policy run, at 40/s", 2 * time.Second, serveAddedPolicy},
		{"130 tasks of a removed policy run", 10 * time.Second, removePolicy},
		{"another key than a refused one is served", 1500 * time.Millisecond, refuseOneKey},
		{"a shutdown of one second ends, beside tasks that wait", 5 * time.Second, shutDownWaiting},
		{"a shutdown of one second ends, beside tasks that stand by", 5 * time.Second, shutDownStanding},
	} {
		t.Run(test.what, func(t *testing.T) {
			prove.Figures(t, func(t *testing.T) []prove.Figure {
				return []prove.Figure{prove.Took(test.what, test.took(t, throttletest.Redis(t)), test.bound)}
			})
		})
	}
}
