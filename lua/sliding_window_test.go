package lua

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// roomProbe looks for room and takes it, or only looks, or gives back, as often as it is
// told in one call; and tells which buckets it found.
const roomProbe = `
local limit = limits[1]
local algorithm, found, taken = limit.algorithm, {}, {}
local state = algorithm.load(false, limit, now, KEYS[2])
while argument < #ARGV do
  local does, cost, from = next_text(), next_number(), next_number()
  if does == 'back' then
    local i = from % #taken + 1
    algorithm.adjust(state, limit, -taken[i].cost, 0, now, taken[i].start)
    table.remove(taken, i)
    found[#found + 1] = i - 1
  else
    found[#found + 1] = algorithm.earliest(state, limit, cost, from * limit.extra, now) / limit.extra
    if does == 'take' then
      local start = algorithm.take(state, limit, cost, found[#found] * limit.extra, now)
      taken[#taken + 1] = { cost = cost, start = start }
    end
  end
end
return found
`

// Whatever was looked for before in the same call, and wherever, the first bucket with room
// is found: the first that no span+1 buckets in a row have too much with.
func TestSlidingWindowFindsTheFirstRoom(t *testing.T) {
	t.Parallel()
	client := throttletest.Redis(t).Client()
	require.NoError(t, client.Set(t.Context(), "{t}clock", 1_700_000_000_000_000, 0).Err())
	const first = int64(1_700_000_000)
	probe := redis.NewScript(strip(testClock + part("read") + makers() + part("policy") + "next_text()\n" + roomProbe))
	type take struct{ bucket, cost int64 }
	random, closed := rand.New(rand.NewPCG(1, 2)), 0
	for round := range 1000 {
		span, count := 1+random.Int64N(8), 1+random.Int64N(12)
		limit := Limit{
			Algorithm: "sliding_window", Count: count, PeriodUS: span * 1_000_000, Capacity: count, Option: "-", Extra: 1_000_000,
		}
		var asks []take
		var does []string
		args, held := append(Head(limit), "room"), 0
		for range 30 {
			ask := take{first + random.Int64N(3)*random.Int64N(3*span), 1 + random.Int64N(1+random.Int64N(count))}
			what := []string{"take", "take", "look", "back"}[random.IntN(4)]
			switch {
			case what == "take":
				held++
			case held == 0:
				what = "look"
			case what == "back":
				held--
			}
			asks, does = append(asks, ask), append(does, what)
			args = append(args, what, ask.cost, ask.bucket)
		}
		found, err := probe.Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64Slice()
		require.NoError(t, err)
		var taken []take
		passes := func(bucket, cost int64) bool {
			for last := bucket; last <= bucket+span; last++ {
				sum := cost
				for _, other := range taken {
					if other.bucket >= last-span && other.bucket <= last {
						sum += other.cost
					}
				}
				if sum > count {
					return false
				}
			}
			return true
		}
		for i, ask := range asks {
			if does[i] == "back" {
				taken = append(taken[:found[i]], taken[found[i]+1:]...)
				continue
			}
			want := ask.bucket
			for !passes(want, ask.cost) {
				want++
			}
			if want > ask.bucket {
				closed++
			}
			require.Equal(t, want, found[i], fmt.Sprintf("round %d, request %d: %s %+v of %s", round, i, does[i], ask, limit.numbers()))
			if does[i] == "take" {
				taken = append(taken, take{want, ask.cost})
			}
		}
	}
	require.Greater(t, closed, 5000)
}

// workProbe decides on two requests of a cost that does not pass, and then on one of another
// cost. It tells how many rounds of loops it takes to read the state, for each of them, and to
// write it.
const workProbe = `
local limit, body = limits[1], next_text()
local algorithm, spent = limit.algorithm, {}
rounds = 0
local state = algorithm.load(body, limit, now, KEYS[2])
local function decide(cost)
  local before = rounds
  algorithm.earliest(state, limit, cost, now, now, '')
  algorithm.spread(state, limit, cost, now, now, '')
  algorithm.status(state, limit, now)
  spent[#spent + 1] = rounds - before
end
spent[1] = rounds
decide(1)
decide(1)
decide(2)
local before = rounds
algorithm.store(state, limit, now)
spent[#spent + 1] = rounds - before
return spent
`

// The worst case that README.md tells of: a state has the buckets of a period and up to 1,000
// more. It takes one round for each of them to read it and to write it, and two for the first
// request of a cost that does not pass. The next ones go on from there.
func TestSlidingWindowWorkIsBounded(t *testing.T) {
	t.Parallel()
	const span int64 = 1000
	limit := Limit{Algorithm: "sliding_window", Count: span, PeriodUS: span * 1000, Capacity: span, Option: "-", Extra: 1000}
	loops := regexp.MustCompile(`(?m)(\bdo)$`).ReplaceAllString(strip(makers()), "$1\nrounds = rounds + 1")
	text := "local rounds = 0\n" + testClock + part("read") + loops + part("policy") + "next_text()\n" + workProbe
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		for _, buckets := range []int64{10, span, 2*span - 1} { // those that may count now, and as many ahead
			client := server.Client()
			const now = 1_700_000_000_000_000
			require.NoError(t, client.Set(t.Context(), "{t}clock", now, 0).Err())
			first := now/1000 - span + 1
			body := fmt.Sprintf("0/%d:", first) + strings.Repeat("1,", int(buckets-1)) + fmt.Sprint(max(1, span-buckets+1))
			args := append(Head(limit), "work", body)
			spent, err := redis.NewScript(strip(text)).Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64Slice()
			require.NoError(t, err)
			assert.LessOrEqual(t, spent[0], buckets+1, "to read")
			assert.LessOrEqual(t, spent[1], 2*buckets+10, "the first request")
			assert.LessOrEqual(t, spent[2], span+10, "the next one: what a period before its bucket counts")
			assert.LessOrEqual(t, spent[3], 2*buckets+10, "of another cost")
			assert.LessOrEqual(t, spent[4], buckets+1, "to write")
			assert.Greater(t, spent[0], buckets/2, "else this counts nothing")
		}
	})
}
