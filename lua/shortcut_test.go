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

// shortcutClock reads the time from a key. A TTL is so long that no key expires while a
// test runs, and a microsecond's difference shows as a second's.
const shortcutClock = `
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

// twins are two sets of the same keys: one is asked by the shortcut where there is one,
// the other by the rest of reserve alone.
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
		quick:  redis.NewScript(opening(shortcutClock) + shortcut(limits) + "return {}"),
		slow:   redis.NewScript(opening(shortcutClock) + reserve(limits)),
		random: rand.New(rand.NewPCG(seed, 21)), now: 1_700_000_000_000_000,
	}
}

// keys are those of a call, in one of the two sets.
func (w *twins) keys(set string, attempt int) []string {
	keys := []string{"{t}" + set + "/freeze"}
	for i := range w.limits {
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
	case 0, 1:
		w.disturb()
	case 2: // what something else was left in
		require.NoError(w.t, w.client.Del(w.t.Context(), append(w.keys("quick", 0), w.keys("slow", 0)...)...).Err())
	}
	times, attempt, wait := 1+w.random.IntN(3), 0, w.random.IntN(2)*500_000
	if w.random.IntN(3) == 0 {
		times, attempt = 1, 1+w.random.IntN(50)
	}
	args := []any{times, wait, "", 0}
	if attempt > 0 {
		args[3] = len(w.limits) + 2
	}
	for i := range w.limits {
		args = append(args, i+2, 1+w.random.IntN(2))
	}
	w.compare(attempt, args)
}

func (w *twins) compare(attempt int, args []any) {
	ctx, t := w.t.Context(), w.t
	quick, slow := w.keys("quick", attempt), w.keys("slow", attempt)
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
	i := w.random.IntN(len(w.limits) + 1)
	if i == len(w.limits) {
		freeze := strconv.FormatInt(w.now+w.random.Int64N(400_000)-200_000, 10)
		w.set("{t}quick/freeze", freeze)
		w.set("{t}slow/freeze", freeze)
		return
	}
	l, name := w.limits[i], strconv.Itoa(i)
	near := w.now + w.random.Int64N(2_000_000) - 1_000_000
	bucket := smooth(l.Count, l.Capacity).bucket()
	states := []string{
		"", "list", "something else", "12", "-5/x",
		fmt.Sprintf("%d/%s", near, bucket.fullText(l.Capacity)),
		fmt.Sprintf("%d/7s3", near),
		fmt.Sprintf("%d+1/%s", near, bucket.fullText(l.Capacity)),
		fmt.Sprintf("%d/%s@%d:1", near, bucket.fullText(l.Capacity), near+100_000),
		fmt.Sprintf("%d/%s;%d:1:%d:0", near, bucket.fullText(l.Capacity), near+100_000, near),
		fmt.Sprintf("%d/%d/%d:2", near, l.PeriodUS, l.Count),
		fmt.Sprintf("%d/%d/%d:1,2", near, l.PeriodUS, l.Count),
		fmt.Sprintf("%d/%d/%d:4", near, l.PeriodUS+1000, l.Count),
		fmt.Sprintf("%d/%d/%d:4", near, l.PeriodUS, l.Count+1),
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
func TestShortcutIsTheSame(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string][]Limit{
		"a bucket":              {smooth(10, 5)},
		"a window by the clock": {window(5, "-")},
		"a window":              {window(5, "first")},
		"two windows":           {window(9, "first"), window(6, "-")},
		"three limits":          {smooth(20, 8), window(6, "-"), smooth(10, 9)},
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
				assert.Greater(t, w.simple, steps/6)
				assert.Greater(t, w.others, steps/6)
			})
		})
	}
}

// A limit whose tokens are no whole microseconds, or that keeps some, has none, nor has
// a policy with such a limit, or one of another algorithm.
func TestShortcutIsForSimpleLimits(t *testing.T) {
	t.Parallel()
	kept := smooth(10, 5)
	kept.Kept = 1
	for _, other := range []Limit{smooth(3, 5), kept, {Algorithm: "sliding_log", Count: 5, PeriodUS: 1_000_000}} {
		assert.Empty(t, shortcut([]Limit{smooth(10, 5), other}), other)
	}
}

func TestBucketNumbers(t *testing.T) {
	t.Parallel()
	for limit, want := range map[Limit]struct {
		bucket bucket
		text   string
	}{
		smooth(10, 5):    {bucket{tokenUS: 100_000, fullUS: 500_000}, "500000u5"},
		smooth(10, 20):   {bucket{tokenUS: 100_000, fullUS: 2_000_000}, "2s20"},
		smooth(3, 1):     {bucket{tokenUS: 333_333, tokenParts: 1, fullUS: 333_334}, "333334u1"},
		smooth(3, 3):     {bucket{tokenUS: 333_333, tokenParts: 1, fullUS: 1_000_000}, "1s3"},
		smooth(1e7, 1e8): {bucket{tokenUS: 0, tokenParts: 1e6, fullUS: 1e7}, "10s100000000"},
	} {
		assert.Equal(t, want.bucket, limit.bucket())
		assert.Equal(t, want.text, limit.bucket().fullText(limit.Capacity))
	}
}
