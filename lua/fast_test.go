package lua

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// testClock reads the time from a key. A TTL is so long that no key expires while a
// test runs, and a microsecond's difference shows as a second's.
const testClock = `
local function now_us() return tonumber(redis.call('GET', '{t}clock')) end
local function int(n) return string.format('%d', n) end
local function ttl_ms(us) return 1000000000 + us * 1000 end
`

func smooth(count, capacity int64) Limit {
	return Limit{Algorithm: "token_bucket", Count: count, PeriodUS: 1_000_000, Capacity: capacity, Option: "-"}
}

func window(count int64, anchor string) Limit {
	return Limit{Algorithm: "fixed_window", Count: count, PeriodUS: 700_000, Capacity: count, Option: anchor}
}

// twins are two sets of the same keys: one is asked by the fast path where that answers, the
// other by the rest of reserve alone.
type twins struct {
	t           *testing.T
	client      *redis.Client
	limits      []Limit
	quick, slow *redis.Script
	random      *rand.Rand
	now         int64
	simple      int
	others      int
}

func newTwins(t *testing.T, server *throttletest.Server, limits []Limit) *twins {
	seed := uint64(len(limits))
	return &twins{
		t: t, client: server.Client(), limits: limits,
		quick:  redis.NewScript(strip(testClock + part("read", "fast") + "return {}")),
		slow:   redis.NewScript(strip(testClock + part("read") + makers() + part("policy") + lineMaker() + onLimits())),
		random: rand.New(rand.NewPCG(seed, 21)), now: 1_700_000_000_000_000,
	}
}

// holders are whose counts there are of each limit.
const holders = 2

// keys are those of a call, in one of the two sets; the line's, too, if it heeds that.
func (w *twins) keys(set string, heeds bool, attempt int) []string {
	keys := []string{"{t}" + set + "/freeze"}
	if heeds {
		keys = append(keys, "{t}"+set+"/line")
	}
	for i := range holders * len(w.limits) {
		keys = append(keys, fmt.Sprintf("{t}%s/%d", set, i))
	}
	if attempt > 0 {
		keys = append(keys, fmt.Sprintf("{t}%s/attempt:%d", set, attempt))
	}
	return keys
}

// state is what a set of keys holds, and for how long.
func (w *twins) state(keys []string) (values []string, ttls []time.Duration) {
	ctx, pipeline := w.t.Context(), w.client.Pipeline()
	texts, lives := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	for i, key := range keys {
		texts[i], lives[i] = pipeline.Get(ctx, key), pipeline.PTTL(ctx, key)
	}
	_, _ = pipeline.Exec(ctx) // a key that is missing, or of another type, is an error
	for i := range keys {
		text, err := texts[i].Result()
		values, ttls = append(values, fmt.Sprint(text, err)), append(ttls, lives[i].Val())
	}
	return values, ttls
}

// step makes one random call of both sets.
func (w *twins) step() {
	// Often at an instant when something ends, or next to it.
	w.now = (w.now/100_000+w.random.Int64N(8))*100_000 + w.random.Int64N(3) - 1
	if w.random.IntN(40) == 0 {
		w.now -= w.random.Int64N(2_000_000)
	}
	w.set("{t}clock", strconv.FormatInt(w.now, 10))
	switch w.random.IntN(16) {
	case 0:
		w.disturb()
	case 1, 2: // what something else was left in
		require.NoError(w.t, w.client.Del(w.t.Context(), append(w.keys("quick", true, 0), w.keys("slow", true, 0)...)...).Err())
	case 3, 4, 5, 6: // nobody is in line any more
		lines := append(w.client.Keys(w.t.Context(), "{t}*/line*").Val(), "none")
		require.NoError(w.t, w.client.Del(w.t.Context(), lines...).Err())
	}
	times, attempt := make([]int, max(1, w.random.IntN(4))), 0
	for i := range times {
		times[i] = 1 + w.random.IntN(3)
	}
	if w.random.IntN(10) == 0 {
		times, attempt = []int{1}, 1+w.random.IntN(20)
	}
	first, heeds, parks := 2, w.random.IntN(2) == 0, w.random.IntN(4) > 0
	args := append(Head(w.limits...), "reserve")
	if heeds {
		first = 3
		args[len(args)-1] = "ask"
		args = append(args, w.asking(times, parks))
	}
	for _, n := range times {
		args = append(args, w.run(n, attempt, first, heeds, parks)...)
	}
	w.compare(heeds, attempt, args)
}

// asking tells of the tasks in line, which all are of one row.
func (w *twins) asking(times []int, parks bool) string {
	tasks := 0
	for _, n := range times {
		tasks += n
	}
	told := []any{0, 20_000, 2_000_000, 1, "0:,", 1, tasks}
	for range tasks {
		if parks {
			told = append(told, "/"+strconv.Itoa(w.random.IntN(50)), 1)
		} else {
			told = append(told, "", 0)
		}
	}
	text := ""
	for _, word := range told {
		text += fmt.Sprintf("%d:%v", len(fmt.Sprint(word)), word)
	}
	return text
}

// run is one of so many equal requests, where the states are those from the first key on.
func (w *twins) run(times, attempt, first int, heeds, parks bool) []any {
	place := 0
	if attempt > 0 {
		place = holders*len(w.limits) + first
	}
	args := []any{times, w.random.IntN(2) * 500_000, "", place}
	if heeds {
		since := 0
		if parks {
			since = w.random.IntN(2) * 1000 * int(w.now/1_000_000_000)
		}
		args = append(args, 1_000_000_000, since, 0)
	}
	holder := w.random.IntN(holders)
	for i := range w.limits {
		args = append(args, first+holder*len(w.limits)+i, 1+w.random.IntN(2))
	}
	return args
}

func (w *twins) compare(heeds bool, attempt int, args []any) {
	ctx, t := w.t.Context(), w.t
	quick, slow := w.keys("quick", heeds, attempt), w.keys("slow", heeds, attempt)
	before, _ := w.state(quick)
	answer := reply(ctx, w.client, w.quick, quick, args)
	if answer == "[]" {
		w.others++
		after, _ := w.state(quick)
		require.Equal(t, before, after, "who has no answer changes nothing")
		answer = reply(ctx, w.client, w.slow, quick, args)
	} else {
		w.simple++
	}
	told := fmt.Sprintf("of %q, at %d, args %v", before, w.now, args)
	require.Equal(t, strings.ReplaceAll(reply(ctx, w.client, w.slow, slow, args), "{t}slow", "{t}quick"), answer, told)
	values, ttls := w.state(quick)
	wanted, wantedTTLs := w.state(slow)
	require.Equal(t, wanted, values, told)
	for i := range ttls {
		require.InDelta(t, wantedTTLs[i], ttls[i], float64(2*time.Minute), told) // 120 us of the limits' time
	}
}

// disturb puts something else into a key of both sets.
func (w *twins) disturb() {
	i := w.random.IntN(holders*len(w.limits) + 1)
	if i == holders*len(w.limits) {
		freeze := strconv.FormatInt(w.now+w.random.Int64N(400_000)-200_000, 10)
		w.set("{t}quick/freeze", freeze)
		w.set("{t}slow/freeze", freeze)
		return
	}
	l, name := w.limits[i%len(w.limits)], strconv.Itoa(i)
	near := w.now + w.random.Int64N(2_000_000) - 1_000_000
	numbers := l.numbers()
	states := []string{
		"", "list", "something else", "12", "-5/x", numbers, numbers + "x",
		fmt.Sprintf("%s%d", numbers, near),
		fmt.Sprintf("7/3s|%d", near),
		fmt.Sprintf("%s%d|%d|7/3s||%d", numbers, near, w.now, w.now),
		fmt.Sprintf("7/3s|%d|%d|%s%d|%d", near, w.now, numbers, near, w.now),
		fmt.Sprintf("%s%d+1", numbers, near),
		fmt.Sprintf("%s%d@%d,1", numbers, near, near+100_000),
		fmt.Sprintf("%s%d;%d,1,%d,0", numbers, near, near+100_000, near),
		fmt.Sprintf("%s%d:2", numbers, near),
		fmt.Sprintf("%s%d:1,2", numbers, near),
		fmt.Sprintf("7/3s|%d:4", near),
		fmt.Sprintf("%s%d:4|%d|7/3s|%d:1|%d", numbers, near, w.now, near, w.now),
	}
	state := states[w.random.IntN(len(states))]
	for _, key := range []string{"{t}quick/" + name, "{t}slow/" + name} {
		require.NoError(w.t, w.client.Del(w.t.Context(), key).Err())
		switch state {
		case "":
		case "list":
			require.NoError(w.t, w.client.RPush(w.t.Context(), key, "precious").Err())
		default:
			w.set(key, state)
		}
	}
}

func (w *twins) set(key, value string) {
	require.NoError(w.t, w.client.Set(w.t.Context(), key, value, 0).Err())
}

// reply is what a call answers, or its error, as a text.
func reply(ctx context.Context, client *redis.Client, script *redis.Script, keys []string, args []any) string {
	answer, err := script.Run(ctx, client, keys, args...).Result()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(answer)
}

// What answers simple calls says and keeps the same as what answers all.
func TestFastPathIsTheSame(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string][]Limit{
		"a bucket":              {smooth(10, 6)},
		"a window by the clock": {window(8, "-")},
		"a window":              {window(8, "first")},
		"two windows":           {window(9, "first"), window(7, "-")},
		"three limits":          {smooth(20, 9), window(8, "-"), smooth(20, 12)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				steps := 500
				if strings.HasSuffix(t.Name(), "/embedded") {
					steps = 100 // which take as long there
				}
				w := newTwins(t, server, limits)
				for range steps {
					w.step()
				}
				assert.Greater(t, w.simple, steps/7)
				assert.Greater(t, w.others, steps/7)
			})
		})
	}
}

// A limit whose tokens are no whole microseconds, or that keeps some, is not answered fast,
// nor is a policy with such a limit, or one of another algorithm.
func TestFastPathIsForSimpleLimits(t *testing.T) {
	t.Parallel()
	kept := smooth(10, 5)
	kept.Kept = 1
	log := Limit{Algorithm: "sliding_log", Count: 5, PeriodUS: 1_000_000, Capacity: 5, Option: "-"}
	for _, other := range []Limit{smooth(3, 5), kept, log} {
		w := newTwins(t, throttletest.Embedded(t), []Limit{smooth(10, 5), other})
		w.set("{t}clock", "1700000000000000")
		args := append(Head(w.limits...), "reserve", 1, 0, "", 0, 2, 1, 3, 1)
		assert.Equal(t, "[]", reply(t.Context(), w.client, w.quick, w.keys("quick", false, 0), args), other)
	}
}

// What tells numbers apart, and that all of them do.
func TestNumbers(t *testing.T) {
	t.Parallel()
	limit := smooth(10, 10)
	assert.Equal(t, "10/1s|", limit.numbers())
	limit.Capacity, limit.PeriodUS = 20, 1
	assert.Equal(t, "10/1ub20|", limit.numbers())
	limit.Extra, limit.Option = 7, "first"
	assert.Equal(t, "10/1ub20x7:first|", limit.numbers())
	assert.Equal(t, []any{"1", "token_bucket", "10/1ub20x7:first|", "10", "1", "20", "first", "7", "0", "0"}, Head(limit))
}
