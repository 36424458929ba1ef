package throttle_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func slidingLog(name string, count int64, period time.Duration) policy.Limit {
	return policy.Limit{
		Name: name, Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: count, Period: period}, Cost: "cost",
	}
}

// logLimiter is a testLimiter that asks for tasks by their names and costs.
type logLimiter struct{ *testLimiter }

func newLogLimiter(t *testing.T, server *throttletest.Server, limits ...policy.Limit) logLimiter {
	t.Helper()
	return logLimiter{newTestLimiterOn(t, server, limits...)}
}

// reserve asks for the start of a task of that name and cost.
func (b logLimiter) reserve(who string, cost int, wait time.Duration) *throttle.Reservation {
	b.t.Helper()
	asked := request(wait, "cost", strconv.Itoa(cost))
	asked.TaskID = who
	r, err := b.limiter.Reserve(b.t.Context(), asked)
	require.NoError(b.t, err)
	return r
}

// granted is reserve of what must be granted.
func (b logLimiter) granted(who string, cost int, wait time.Duration) *throttle.Reservation {
	b.t.Helper()
	r := b.reserve(who, cost, wait)
	require.Equal(b.t, throttle.Granted, r.Outcome)
	return r
}

// together asks for starts of these costs in one script call, all of which must be
// granted.
func (b logLimiter) together(wait time.Duration, costs ...int) []*throttle.Reservation {
	b.t.Helper()
	asks := make([]throttle.Request, len(costs))
	for i, cost := range costs {
		asks[i] = request(wait, "cost", strconv.Itoa(cost))
	}
	answers, err := throttle.ReserveTogether(b.limiter, asks...)
	require.NoError(b.t, err)
	for _, r := range answers {
		require.Equal(b.t, throttle.Granted, r.Outcome)
	}
	return answers
}

// commands counts what scripts do with sorted sets meanwhile. It needs a real Redis.
func (b logLimiter) commands(do func()) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.client.ConfigResetStat(b.t.Context()).Err())
	do()
	stats := b.client.Info(b.t.Context(), "commandstats").Val()
	for _, calls := range regexp.MustCompile(`cmdstat_z\w+:calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		more, err := strconv.Atoi(calls[1])
		require.NoError(b.t, err)
		n += more
	}
	return n
}

func (b logLimiter) peek(cost int) throttle.Decision {
	b.t.Helper()
	d, err := b.limiter.Peek(b.t.Context(), request(0, "cost", strconv.Itoa(cost)))
	require.NoError(b.t, err)
	return d
}

// recent lists who started lately, as "name:cost@seconds after noon".
func (b logLimiter) recent(limit string, most int) []string {
	b.t.Helper()
	starts, err := b.limiter.Recent(b.t.Context(), request(0), limit, most)
	require.NoError(b.t, err)
	list := make([]string, len(starts))
	for i, s := range starts {
		list[i] = fmt.Sprintf("%s:%d@%v", s.TaskID, s.Cost, s.At.Sub(noon).Seconds())
	}
	return list
}

// stored returns everything that the log keeps.
func (b logLimiter) stored(limit string) []redis.Z {
	b.t.Helper()
	members, err := b.client.ZRangeWithScores(b.t.Context(), "rm:{api}:"+limit, 0, -1).Result()
	require.NoError(b.t, err)
	return members
}

// A list of time stamps that two rules share: 1/s and 5/min.
func TestS6SlidingLogSeveralRules(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("second", 1, time.Second), slidingLog("minute", 5, time.Minute))
		for i, step := range []struct {
			second int
			passes bool
			heldBy string
		}{
			{0, true, ""},
			{0, false, "second"},
			{1, true, ""},
			{2, true, ""},
			{3, true, ""},
			{4, true, ""},
			{5, false, "minute"},
			{66, true, ""},
		} {
			b.at(time.Duration(step.second) * time.Second)
			r := b.reserve("", 1, 0)
			assert.Equal(t, step.passes, r.Outcome == throttle.Granted, "step %d, second %d", i, step.second)
			assert.Equal(t, step.heldBy, r.HeldBy, "step %d", i)
		}
	})
}

// A list limiter remembers who is calling in the window.
func TestS3ListLimiterRemembersWho(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("list", 5, 10*time.Second))
		assert.Empty(t, b.recent("list", 10))
		b.granted("ann", 1, 0)
		b.at(time.Second)
		b.granted("bob", 3, 0)
		b.at(2 * time.Second)
		b.granted("with: a.dot/and\nmore", 1, 0)
		b.granted("ahead", 1, time.Minute)
		assert.Equal(t, throttle.Denied, b.reserve("denied", 1, 0).Outcome)

		before := b.stored("list")
		assert.Equal(t, []string{"with: a.dot/and\nmore:1@2", "bob:3@1", "ann:1@0"}, b.recent("list", 10))
		assert.Equal(t, []string{"with: a.dot/and\nmore:1@2"}, b.recent("list", 1))
		assert.Empty(t, b.recent("list", 0))
		assert.Empty(t, b.recent("list", -1))
		assert.Equal(t, before, b.stored("list"), "it changes nothing")

		b.at(10*time.Second - time.Microsecond)
		assert.Equal(t, []string{"with: a.dot/and\nmore:1@2", "bob:3@1", "ann:1@0"}, b.recent("list", 10))
		b.at(10*time.Second + throttle.Lateness)
		assert.Equal(t, []string{"ahead:1@10.02", "with: a.dot/and\nmore:1@2", "bob:3@1"}, b.recent("list", 10),
			"a slot has become a start, and a start is a period old")
	})
}

// Those of one instant are told in the order they came, last first.
func TestRecentTellsCostsAsAdjusted(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 12, time.Minute))
		r := []*throttle.Reservation{b.granted("a", 2, 0), b.granted("b", 2, 0), b.granted("c", 1, 0), b.granted("d", 2, 0)}
		for i, cost := range []string{"4", "30", "1", "0"} {
			require.NoError(t, r[i].Adjust(t.Context(), map[string]string{"cost": cost}))
		}
		assert.Equal(t, []string{"c:1@0", "b:30@0", "a:4@0"}, b.recent("log", 10))
		require.NoError(t, r[1].Adjust(t.Context(), map[string]string{"cost": "29"}))
		require.NoError(t, r[3].Adjust(t.Context(), map[string]string{"cost": "1"}))
		assert.Equal(t, []string{"d:1@0", "c:1@0", "b:29@0", "a:4@0"}, b.recent("log", 10))
		require.NoError(t, r[1].Adjust(t.Context(), map[string]string{"cost": "2"}))
		assert.Equal(t, []string{"d:1@0", "c:1@0", "b:2@0", "a:4@0"}, b.recent("log", 10))
		assert.Equal(t, int64(4), b.peek(1).Limits[0].Remaining)
	})
}

func TestRecentErrors(t *testing.T) {
	t.Parallel()
	server := throttletest.Embedded(t)
	log := slidingLog("log", 5, time.Minute)
	log.Per = "tenant"
	b := newLogLimiter(t, server, log, window("window", 1, time.Minute, ""))
	ask := func(request throttle.Request, limit string) error {
		_, err := b.limiter.Recent(t.Context(), request, limit, 10)
		return err
	}
	require.ErrorIs(t, ask(throttle.Request{Policy: "other"}, "log"), throttle.ErrUnknownPolicy)
	require.ErrorIs(t, ask(request(0), "other"), throttle.ErrNoLog)
	err := ask(request(0), "window")
	require.ErrorIs(t, err, throttle.ErrNoLog)
	assert.EqualError(t, err,
		`throttle: no sliding_log: limit "window" of policy "api" is a fixed_window, which does not remember who started`)
	missing := (*policy.AttributeError)(nil)
	require.ErrorAs(t, ask(request(0), "log"), &missing)
	assert.Equal(t, "tenant", missing.Attribute)
	require.NoError(t, ask(request(0, "tenant", "x"), "log"))

	require.NoError(t, b.client.Set(t.Context(), "rm:{api}:log:x", "mine", time.Hour).Err())
	require.ErrorContains(t, ask(request(0, "tenant", "x"), "log"), "RAMPMETER key rm:{api}:log:x holds something")
}

// Law 3, to the microsecond: by the start that must be a period old first.
func TestSlidingLogPatience(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 4, time.Minute))
		for second, cost := range []int{1, 2, 1} {
			b.at(time.Duration(second) * time.Second)
			b.granted("", cost, 0)
		}
		for cost, after := range map[int]time.Duration{
			1: 58 * time.Second, 2: 59 * time.Second, 3: 59 * time.Second, 4: 60 * time.Second,
		} {
			b.at(2 * time.Second)
			d := b.peek(cost)
			require.Equal(t, after, d.RetryAfter(), "cost %d", cost)
			b.at(2*time.Second + after - time.Microsecond)
			d = b.peek(cost)
			assert.Equal(t, time.Microsecond, d.RetryAfter(), "cost %d", cost)
			b.at(2*time.Second + after)
			assert.Equal(t, throttle.Granted, b.peek(cost).Outcome, "cost %d", cost)
		}
	})
}

// A start before slots that were granted already must leave every interval that
// has them, too, within the limit.
func TestSlidingLogBetweenSlots(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 3, 10*time.Second))
		b.granted("a", 2, 0)
		assert.Equal(t, noon.Add(10*time.Second+throttle.Lateness), b.granted("b", 3, time.Minute).At.UTC())
		assert.Equal(t, noon, b.granted("c", 1, time.Minute).At.UTC(), "there is room before that slot")

		b.at(time.Second)
		d := b.peek(1)
		assert.Equal(t, 19*time.Second+throttle.Lateness, d.RetryAfter(), "full by what was and what will be")
		assert.Equal(t, int64(0), d.Limits[0].Remaining)
		assert.Equal(t, 19*time.Second+throttle.Lateness, d.Limits[0].ResetAfter)
	})
}

// A reservation gives back its own start and no other, however many share the
// instant, the name and the cost.
func TestSlidingLogCancelsItsOwn(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 6, time.Minute))
		first, second := b.granted("same", 2, 0), b.granted("same", 2, 0)
		b.granted("same", 2, 0)
		require.NoError(t, second.Cancel(t.Context()))
		assert.Equal(t, []string{"same:2@0", "same:2@0"}, b.recent("log", 10))
		b.granted("other", 2, 0)
		require.NoError(t, second.Cancel(t.Context()))
		require.NoError(t, first.Cancel(t.Context()))
		assert.Equal(t, []string{"other:2@0", "same:2@0"}, b.recent("log", 10))

		slot := b.granted("slot", 6, time.Hour)
		require.Equal(t, noon.Add(time.Minute+throttle.Lateness), slot.At.UTC())
		require.NoError(t, slot.Cancel(t.Context()))
		b.granted("again", 2, 0)
	})
}

// What was given back and granted anew is not given back by the first one's cancel,
// sent again because its answer was lost.
func TestSlidingLogNumbersAreNotGivenTwice(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 1, time.Minute))
		r := b.granted("", 1, 0)
		require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "0"}))
		b.granted("", 1, 0)
		require.NoError(t, r.Cancel(t.Context()))
		assert.Equal(t, throttle.Denied, b.reserve("", 1, 0).Outcome)
	})
}

// A clock that is set back by up to a second, and no more than a period, finds every
// start that counts by then; set back for good, it locks nobody out.
func TestSlidingLogClockSetBack(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 4, time.Minute))
		b.granted("", 3, 0)
		b.at(time.Minute + 500*time.Millisecond)
		b.granted("", 1, 0)
		b.at(time.Minute - time.Microsecond)
		assert.Equal(t, int64(0), b.peek(1).Limits[0].Remaining)
		assert.Equal(t, time.Microsecond, b.reserve("", 2, 0).RetryAfter())
		b.at(-time.Hour)
		assert.Equal(t, throttle.Granted, b.reserve("", 4, 0).Outcome)
	})
}

// What a start really cost comes back when Redis has lost it, without meeting those
// that came since.
func TestSlidingLogAdjustsWhatWasLost(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 9, time.Minute))
		b.granted("same", 1, 0)
		r := b.granted("same", 1, 0)
		empty(t, b.client)
		b.at(0)
		require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "3"}))
		for range 4 {
			b.granted("same", 1, 0)
		}
		assert.Equal(t, []string{"same:1@0", "same:1@0", "same:1@0", "same:1@0", "same:2@0"}, b.recent("log", 10),
			"the difference, as nobody knows the rest")
		assert.Equal(t, int64(3), b.peek(1).Limits[0].Remaining)
	})
}

// A start that cost more than the limit holds still closes it when it turns out to
// have cost a little less.
func TestSlidingLogCostAboveTheLimit(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		for _, count := range []int64{1, 2, 3} {
			b := newLogLimiter(t, server, slidingLog("log"+strconv.FormatInt(count, 10), count, time.Minute))
			r := b.granted("", 1, 0)
			for _, step := range []struct {
				cost      int64
				remaining int64
			}{
				{count + 5, 0}, {count + 2, 0}, {count, 0}, {count + 1, 0}, {1, count - 1}, {0, count}, {count + 7, 0},
			} {
				require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": strconv.FormatInt(step.cost, 10)}))
				assert.Equal(t, step.remaining, b.peek(1).Limits[0].Remaining, "%d of %d", step.cost, count)
			}
		}
	})
}

// Starts are facts: other numbers count them as they are.
func TestSlidingLogNumbersChange(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", 4, time.Minute))
		for range 4 {
			b.granted("", 1, 0)
		}
		ahead := b.granted("", 1, time.Hour)
		require.Equal(t, noon.Add(time.Minute+throttle.Lateness), ahead.At.UTC())

		b.at(10 * time.Second)
		b.change(slidingLog("log", 6, time.Minute))
		assert.Equal(t, int64(1), b.peek(1).Limits[0].Remaining, "the room is what was added")
		b.change(slidingLog("log", 2, time.Minute))
		d := b.peek(2)
		assert.Equal(t, 110*time.Second+throttle.Lateness, d.RetryAfter(), "after the slot that was granted; no older debt")
		b.change(slidingLog("log", 4, 10*time.Second))
		assert.Equal(t, throttle.Granted, b.peek(4).Outcome, "none was within a shorter period")
		b.change(slidingLog("log", 4, 2*time.Minute))
		d = b.peek(1)
		assert.Equal(t, 110*time.Second, d.RetryAfter(), "a longer one still counts")
	})
}

// Who counts by the longest period counts also while it is denied, and while nothing starts:
// others do not forget what it still counts.
func TestSlidingLogRemembersForWhoIsDenied(t *testing.T) {
	t.Parallel()
	long, short := slidingLog("l", 2, 10*time.Second), slidingLog("l", 5, time.Second)
	type step struct {
		at    float64
		limit policy.Limit
		want  throttle.Outcome
	}
	const cancels throttle.Outcome = 100 // the first start
	for name, steps := range map[string][]step{
		"others start": {
			{0, long, throttle.Granted}, {0, long, throttle.Granted}, {5, short, throttle.Granted}, {6, short, throttle.Granted},
			{12, long, throttle.Denied}, {15.5, short, throttle.Granted}, {17, short, throttle.Granted}, {20, short, throttle.Granted},
			{24, long, throttle.Denied}, {27, long, throttle.Granted},
		},
		"nothing starts for long": {
			{0, long, throttle.Granted}, {5, short, throttle.Granted}, {9, long, throttle.Denied}, {20, long, cancels},
			{21, short, throttle.Granted}, {24, short, throttle.Granted}, {26, long, throttle.Denied}, {31, long, throttle.Granted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				b := newTestLimiterOn(t, server, long)
				var first *throttle.Reservation
				for _, step := range steps {
					b.at(time.Duration(step.at * float64(time.Second)))
					b.change(step.limit)
					if step.want == cancels {
						require.NoError(t, first.Cancel(t.Context()))
						continue
					}
					r := b.reserve(0)
					assert.Equal(t, step.want, r.Outcome, step.at)
					first = cmp.Or(first, r)
				}
			})
		})
	}
}

// The largest cost there is, taken, looked at, adjusted and given back.
func TestSlidingLogLargestCost(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newLogLimiter(t, server, slidingLog("log", policy.MaxLogCount, time.Minute))
		r := b.granted("all", policy.MaxLogCount, 0)
		assert.Equal(t, []string{"all:10000@0"}, b.recent("log", 5))
		assert.Equal(t, throttle.Denied, b.peek(1).Outcome)
		require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "50000000"}))
		assert.Equal(t, []string{"all:50000000@0"}, b.recent("log", 5))
		assert.LessOrEqual(t, len(b.stored("log")), mostMembers+1, "more could close nothing else")
		require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "9999"}))
		assert.Equal(t, int64(1), b.peek(1).Limits[0].Remaining)
		require.NoError(t, r.Cancel(t.Context()))
		assert.Equal(t, int64(policy.MaxLogCount), b.peek(1).Limits[0].Remaining)
		assert.Empty(t, b.recent("log", 5))
	})
}

// What is a period old is forgotten a little at a time, and counts for nothing
// until then.
func TestSlidingLogForgetsBitByBit(t *testing.T) {
	t.Parallel()
	const atOnce, together, most = 1024, 500, 3000
	b := newLogLimiter(t, throttletest.Redis(t), slidingLog("log", policy.MaxLogCount, time.Minute))
	for i := range most / together {
		b.at(time.Duration(i) * time.Millisecond)
		b.together(time.Minute, slices.Repeat([]int{3}, together)...)
	}
	b.at(2 * time.Minute)
	for old := most; old > 0; {
		b.granted("new", 1, 0)
		left, kept := 0, b.stored("log")
		for _, member := range kept {
			if name := member.Member.(string); strings.HasPrefix(name, "s") && strings.Contains(name, "/3.") {
				left++
			}
		}
		require.Less(t, left, old, "some go")
		assert.Less(t, old-left, atOnce+together)
		old = left
		others := slices.DeleteFunc(kept, func(z redis.Z) bool { return strings.HasPrefix(z.Member.(string), "s") })
		assert.Equal(t, left+1, len(others), "and all of each")
		assert.Len(t, b.recent("log", 10), int(policy.MaxLogCount-b.peek(1).Limits[0].Remaining))
	}
}

// mostMembers is the most that the log keeps of one start, whatever it costs.
const mostMembers = 15

// The work of a decision grows neither with its cost nor with what others cost.
func TestSlidingLogLargeCostsAreBounded(t *testing.T) {
	t.Parallel()
	for name, costs := range map[string][]int{
		"500 of 1,000":  slices.Repeat([]int{1000}, 500),
		"300 of 10,000": slices.Repeat([]int{policy.MaxLogCount}, 300),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newLogLimiter(t, throttletest.Redis(t), slidingLog("log", policy.MaxLogCount, time.Second))
			for call := 1; call <= 3; call++ {
				var answers []*throttle.Reservation
				perStart := b.commands(func() { answers = b.together(time.Hour, costs...) }) / len(costs)
				assert.LessOrEqual(t, perStart, 10, "commands in call %d", call)
				assert.LessOrEqual(t, len(b.stored("log")), call*len(costs)*mostMembers+1)
				for i, r := range answers {
					slot := ((call-1)*len(costs) + i) * costs[0] / policy.MaxLogCount
					require.Equal(t, noon.Add(time.Duration(slot)*1010*time.Millisecond), r.At.UTC(), "start %d of call %d", i, call)
				}
			}
			last := b.granted("", policy.MaxLogCount, 2*time.Hour)
			more := b.commands(func() { require.NoError(t, last.Adjust(t.Context(), map[string]string{"cost": "1"})) })
			assert.LessOrEqual(t, more, 40)
			more = b.commands(func() { require.NoError(t, last.Cancel(t.Context())) })
			assert.LessOrEqual(t, more, 40)
		})
	}
}

// Many different costs before a long line with gaps are searched for so long and no
// longer in one call. What that leaves out is found by the next one.
func TestSlidingLogSearchGivesUp(t *testing.T) {
	t.Parallel()
	b := newLogLimiter(t, throttletest.Redis(t), slidingLog("log", 10, time.Second))
	const before, behind, slot = 950, 50, 1010 * time.Millisecond
	line := append(append(slices.Repeat([]int{10}, before), 7), slices.Repeat([]int{10}, behind)...)
	for i, r := range b.together(time.Hour, line...) {
		require.Equal(t, noon.Add(time.Duration(i)*slot), r.At.UTC())
	}
	var slots []time.Duration
	for _, r := range b.together(time.Hour, 6, 5, 4, 4, 3) {
		slots = append(slots, r.At.Sub(noon)/slot-before-behind)
	}
	assert.Equal(t, []time.Duration{1, 2, 1, 2, 3}, slots, "the last goes past the gap, and past what others leave")
	left := b.peek(3)
	assert.Equal(t, (before-1)*slot+time.Second, left.RetryAfter(), "which is found without the others")
	assert.Equal(t, noon.Add(before*slot), b.granted("", 3, time.Hour).At.UTC())
}

// The work of a decision does not grow with what is remembered, nor with how long
// the line of slots ahead is.
func TestSlidingLogWorkIsBounded(t *testing.T) {
	t.Parallel()
	b := newLogLimiter(t, throttletest.Redis(t), slidingLog("log", 2000, time.Minute), slidingLog("second", 40, time.Second))
	const most = 60 // for two logs
	for n := range 1500 {
		b.granted("", 1, time.Hour)
		if n%100 == 0 {
			assert.LessOrEqual(t, b.commands(func() { b.granted("", 1, time.Hour) }), most, "behind %d", n)
			assert.LessOrEqual(t, b.commands(func() { b.reserve("", 1, 0) }), most, "behind %d", n)
		}
	}
}

// Who wakes for a slot may start a little late, and the next one may not: those that may
// wait keep so much more than a period that no interval gets too much by it, whether
// they ask ahead or at the very instant at which they would pass.
func TestSlidingLogLateStarts(t *testing.T) {
	t.Parallel()
	ask := map[string]func(b logLimiter, period time.Duration) *throttle.Reservation{
		"ahead": func(b logLimiter, period time.Duration) *throttle.Reservation {
			return b.granted("", 1, 100*period)
		},
		"as they pass": func(b logLimiter, period time.Duration) *throttle.Reservation {
			d := b.peek(1)
			b.set(b.clock.Now().Add(d.RetryAfter()))
			return b.granted("", 1, period)
		},
	}
	for period, late := range map[time.Duration]time.Duration{
		time.Second: 10 * time.Millisecond, time.Minute: throttle.Lateness,
	} {
		for name, next := range ask {
			b := newLogLimiter(t, throttletest.Redis(t), slidingLog("log", 5, period))
			random := rand.New(rand.NewPCG(uint64(period), 5))
			var starts []time.Time
			for range 200 {
				slot := next(b, period).At
				starts = append(starts, slot.Add(time.Duration(random.Int64N(int64(late)))))
			}
			slices.SortFunc(starts, time.Time.Compare)
			assert.Equal(t, 5, throttletest.MaxInAnyInterval(starts, period), "%s, of %s", name, period)
			slots := starts[len(starts)-1].Sub(starts[0])
			assert.InEpsilon(t, 39*period, slots, 0.011, "%s, and no more is left unused", name)
		}
	}
}
