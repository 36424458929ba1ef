package lua

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// supplyProbe takes some tokens, and then tells what supply says of those that may start
// until some instant, and how many do that come one after the other.
const supplyProbe = `
local limit = limits[1]
local algorithm, state = limit.algorithm, limit.algorithm.load(false, limit, now, KEYS[2])
local function take_until(till, most)
  local starts, at = 0, now
  while starts < most do
    at = algorithm.earliest(state, limit, 1, at, now)
    if at > till then
      break
    end
    algorithm.take(state, limit, 1, at, now)
    starts = starts + 1
  end
  return starts
end
local before, ahead_us, later_us, till = next_number(), next_number(), next_number(), next_number()
take_until(now + ahead_us, before)
local body = algorithm.store(state, limit, now)
now = now + later_us
till = now + till
state = algorithm.load(body ~= '' and body, limit, now, KEYS[2])
local start = state.start or state.newest and now or now - now % limit.period_us
if not state.start and (limit.option == 'first' or state.free) then
  start = now
end
return { algorithm.supply(state, limit, till, now), take_until(till, 100000), (till - start) % limit.period_us }
`

// How many may start is how many do, exactly; where a window opens, they come evenly.
func TestSupplyIsWhatStarts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit Limit
		// isAll reports whether supply tells all that start, that long after a window began.
		isAll func(sinceUS int64, limit Limit) bool
	}{
		"token_bucket":       {Limit{Option: "-"}, func(int64, Limit) bool { return true }},
		"interval_bucket":    {Limit{Option: "-"}, func(since int64, l Limit) bool { return since >= l.PeriodUS-l.PeriodUS/l.Count }},
		"fixed_window":       {Limit{Option: "-"}, func(since int64, l Limit) bool { return since >= l.PeriodUS-l.PeriodUS/l.Count }},
		"fixed_window first": {Limit{Option: "first"}, func(since int64, l Limit) bool { return since >= l.PeriodUS-l.PeriodUS/l.Count }},
		"sliding_window":     {Limit{Option: "-"}, func(int64, Limit) bool { return true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := throttletest.Redis(t).Client()
			require.NoError(t, client.Set(t.Context(), "{t}clock", 1_700_000_000_123_456, 0).Err())
			probe := redis.NewScript(strip(testClock + part("read") + makers() + part("policy") + "next_text()\n" + supplyProbe))
			random := rand.New(rand.NewPCG(1, 2))
			all := 0
			for range 2000 {
				limit := test.limit
				limit.Algorithm = name
				if limit.Option == "first" {
					limit.Algorithm = "fixed_window"
				}
				limit.Count, limit.PeriodUS = 1+random.Int64N(30), 1_000*(1+random.Int64N(300))
				limit.Capacity = limit.Count
				switch name {
				case "token_bucket", "interval_bucket":
					limit.Capacity = 1 + random.Int64N(30)
				case "sliding_window":
					limit.Extra = limit.PeriodUS / 10
				}
				till := random.Int64N(5 * limit.PeriodUS)
				if name == "sliding_window" {
					till %= limit.PeriodUS
				}
				ahead := random.Int64N(2) * random.Int64N(3*limit.PeriodUS)
				if name == "sliding_window" {
					ahead = 0
				}
				args := append(Head(limit), "supply", random.IntN(60), ahead, random.Int64N(2*limit.PeriodUS), till)
				reply, err := probe.Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64Slice()
				require.NoError(t, err)
				told, starts, since := reply[0], reply[1], reply[2]
				effective := limit
				effective.Count = min(limit.Count, limit.Capacity)
				require.LessOrEqual(t, told, starts, "%+v %v", limit, args[len(args)-4:])
				if test.isAll(since, effective) {
					all++
					if since == 0 || name == "token_bucket" || name == "sliding_window" {
						require.Equal(t, starts, told, "%+v %v", limit, args[len(args)-4:])
					} else {
						require.GreaterOrEqual(t, told, starts-1, "%+v %v", limit, args[len(args)-4:])
					}
				}
				if starts > 0 && ahead == 0 && since == 0 {
					require.Positive(t, told, strconv.FormatInt(since, 10))
				}
			}
			require.Greater(t, all, 50)
		})
	}
}

// What an upstream says bounds a supply, and nothing does where it says nothing.
func TestSupplyOfUpstreams(t *testing.T) {
	t.Parallel()
	told := Limit{Algorithm: "upstream", Count: 100, PeriodUS: 60_000_000, Capacity: 100, Option: "60000000", Extra: 5}
	pace := Limit{Algorithm: "pace", Count: 100, PeriodUS: 1_000_000, Capacity: 100, Option: "-"}
	const now = 1_700_000_040_000_000
	client := throttletest.Redis(t).Client()
	require.NoError(t, client.Set(t.Context(), "{t}clock", now, 0).Err())
	epoch := strconv.Itoa(now / 60_000_000)
	at := func(us int) string { return strconv.Itoa(now + us) }
	probe := redis.NewScript(strip(testClock + part("read") + makers() + part("policy") + "next_text()\n" + `
local limit = limits[1]
local state = load_state(raw[2], limit, KEYS[2])
local supply = limit.algorithm.supply(state, limit, now + next_number(), now)
return supply == math.huge and -1 or supply
`))
	for name, test := range map[string]struct {
		limit  Limit
		state  string
		tillUS int
		want   int64
	}{
		"nothing heard":          {told, "0/0/0/0/0/0/0/0/0/" + epoch + "/3/0/0", 1e6, -1},
		"the rest of a window":   {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/0", 5e5, 30},
		"and of the next":        {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/4", 31e6, 30 + 40 - 4},
		"all of the next":        {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/4", 61e6, 30 + 75 - 4},
		"one at its beginning":   {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/0", 1e6, 30 + 1},
		"a bucket that refills":  {told, "2/" + at(30e6) + "/60000000/80/0/0/0/0/0/" + epoch + "/0/0/0", 15e6, 75 - 20},
		"closed":                 {told, "0/0/0/0/0/0/0/" + at(2e6) + "/0/" + epoch + "/0/0/0", 1e6, 0},
		"open again":             {told, "0/0/0/0/0/0/0/" + at(2e6) + "/0/" + epoch + "/0/0/0", 3.2e6, 1 + 2},
		"the declared rate":      {pace, "", 1e6, -1},
		"a rate that was found":  {pace, "50000000/" + at(0) + "/0/" + at(0), 1e6, 1 + 35},
		"of which much is taken": {pace, "50000000/" + at(0) + "/0/" + at(2e6), 1e6, 0},
	} {
		require.NoError(t, client.Set(t.Context(), "{t}l", test.state, 0).Err())
		if test.state == "" {
			require.NoError(t, client.Del(t.Context(), "{t}l").Err())
		}
		args := append(Head(test.limit), "supply", test.tillUS)
		got, err := probe.Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64()
		require.NoError(t, err, name)
		require.Equal(t, test.want, got, name)
	}
}
