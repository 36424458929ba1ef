package lua

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// dueProbe takes some tokens, and then tells when so many more are due, and when the last
// of as many starts that come one after the other, each as early as it may. The last of them
// is of some cost, and each leaves some tokens over.
const dueProbe = `
local limit = limits[1]
local algorithm, state = limit.algorithm, limit.algorithm.load(false, limit, now, KEYS[2])
local before, later_us, n, keep, last, every =
  next_number(), next_number(), next_number(), next_number(), next_number(), next_number()
local function take(most, cost, keep)
  local at, mark, part = now, 0, 0
  while most > 0 do
    local own = most == cost and cost or 1
    at = algorithm.earliest(state, limit, own + keep, at, now, '')
    mark, part = algorithm.take(state, limit, own, at, now, '')
    most = most - own
  end
  return at, mark, part
end
local taken = {}
for i = 1, before do
  taken[i] = { take(1, 1, 0) }
end
for i = every, before, every do
  local at, mark, part = unpack(taken[i])
  algorithm.give_back(state, limit, 1, at, now, mark, part, '')
end
now = now + later_us
if algorithm.store then
  local body = algorithm.store(state, limit, now)
  state = algorithm.load(body ~= '' and body, limit, now, KEYS[2])
end
return { algorithm.due(state, limit, n, keep, now, last) - now, take(n, last, keep) - now }
`

// So many tokens are due when the last of as many starts has come: at that very instant,
// or where a window opens at once, less than a period later and evenly.
func TestDueIsWhenTheyStart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit   Limit
		isPaced bool
		delta   func(Limit) int64 // by how much it may be wrong
	}{
		"token_bucket":       {Limit{Option: "-"}, false, func(Limit) int64 { return 2 }},
		"interval_bucket":    {Limit{Option: "-"}, true, nil},
		"fixed_window":       {Limit{Option: "-"}, true, nil},
		"fixed_window first": {Limit{Option: "first"}, true, nil},
		"sliding_window":     {Limit{Option: "-"}, false, func(l Limit) int64 { return l.Extra }},
		"sliding_log":        {Limit{Option: "-"}, false, func(Limit) int64 { return 0 }},
		"spacing":            {Limit{Option: "-"}, false, func(Limit) int64 { return 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := throttletest.Redis(t).Client()
			require.NoError(t, client.Set(t.Context(), "{t}clock", 1_700_000_000_123_456, 0).Err())
			probe := redis.NewScript(strip(testClock + part("read") + makers() + part("policy") + "next_text()\n" + dueProbe))
			random := rand.New(rand.NewPCG(1, 2))
			ahead := 0
			for range 2000 {
				limit := test.limit
				limit.Algorithm = strings.TrimSuffix(name, " first")
				limit.Count, limit.PeriodUS = 1+random.Int64N(30), 1_000*(1+random.Int64N(300))
				limit.Capacity = limit.Count
				switch name {
				case "token_bucket", "interval_bucket":
					limit.Capacity = 1 + random.Int64N(30)
				case "sliding_window":
					limit.Extra = limit.PeriodUS / 10
				}
				before, later, n := random.Int64N(3*limit.Capacity), random.Int64N(2*limit.PeriodUS), 1+random.Int64N(3*limit.Capacity)
				cost, every := int64(1), before+1
				if name == "spacing" { // which keeps none, and has what was given back as free
					cost, every = min(n, 1+random.Int64N(4)), 1+random.Int64N(4)
				} else {
					limit.Kept = max(0, random.Int64N(limit.Capacity)-1)
				}
				args := append(Head(limit), "due", before, later, n, limit.Kept, cost, every)
				reply, err := probe.Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64Slice()
				require.NoError(t, err)
				due, last := reply[0], reply[1]
				what := fmt.Sprintf("%+v: %d before, %d later, %d more, the last of cost %d, each %d. given back", limit, before, later, n, cost, every)
				if last > 0 {
					ahead++
				}
				if !test.isPaced {
					require.InDelta(t, last, due, float64(test.delta(limit)), what)
					continue
				}
				require.GreaterOrEqual(t, due, last, what)
				require.Less(t, due, max(last, 0)+limit.PeriodUS, what)
			}
			require.Greater(t, ahead, 500)
		})
	}
}

// What an upstream says is heeded, and where it says nothing all may start.
func TestDueOfUpstreams(t *testing.T) {
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
return limit.algorithm.due(load_state(raw[2], limit, KEYS[2]), limit, next_number(), next_number(), now) - now
`))
	for name, test := range map[string]struct {
		limit   Limit
		state   string
		n, keep int
		want    int64
	}{
		"nothing heard":          {told, "0/0/0/0/0/0/0/0/0/" + epoch + "/3/0/0", 1000, 0, 0},
		"the rest of a window":   {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/0", 30, 0, 0},
		"and of the next":        {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/4", 30 + 37, 0, 1e6 + 30e6},
		"one at its beginning":   {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/0", 31, 0, 1e6},
		"some are left over":     {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/0", 25, 6, 1e6},
		"and of the one behind":  {told, "1/" + at(1e6) + "/60000000/80/40/0/1/0/0/" + epoch + "/3/2/0", 30 + 75 + 1, 0, 1e6 + 60e6},
		"a bucket that refills":  {told, "2/" + at(30e6) + "/60000000/80/0/0/0/0/0/" + epoch + "/0/0/0", 75 - 20, 0, 15e6},
		"closed":                 {told, "0/0/0/0/0/0/0/" + at(2e6) + "/0/" + epoch + "/0/0/0", 1, 0, 2e6},
		"open again":             {told, "0/0/0/0/0/0/0/" + at(2e6) + "/0/" + epoch + "/0/0/0", 3, 0, 2e6 + 1.2e6},
		"the declared rate":      {pace, "", 1000, 0, 0},
		"a rate that was found":  {pace, "50000000/" + at(0) + "/0/" + at(0), 36, 0, 1e6},
		"of which much is taken": {pace, "50000000/" + at(0) + "/0/" + at(2e6), 1, 0, 2e6},
	} {
		require.NoError(t, client.Set(t.Context(), "{t}l", test.state, 0).Err())
		if test.state == "" {
			require.NoError(t, client.Del(t.Context(), "{t}l").Err())
		}
		args := append(Head(test.limit), "due", test.n, test.keep)
		got, err := probe.Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64()
		require.NoError(t, err, name)
		require.Equal(t, test.want, got, name)
	}
}
