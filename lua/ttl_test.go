package lua

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// ttlProbe takes some tokens by and by, and tells what becomes of a request when the state
// has just expired, if it had not: how long it would wait, what remains, and when all is back.
const ttlProbe = `
local limit = limits[1]
local algorithm, state = limit.algorithm, limit.algorithm.load(false, limit, now, KEYS[2])
local body, ttl
for _ = 1, next_number() do
  local cost, wait_us, later_us = next_number(), next_number(), next_number()
  local at = algorithm.earliest(state, limit, cost, now, now, '')
  if at - now <= wait_us then
    algorithm.take(state, limit, cost, at, now, '')
  end
  body, ttl = algorithm.store(state, limit, now)
  if ttl > 0 and later_us >= ttl * 1000 then
    break
  end
  now = now + later_us
  state = algorithm.load(ttl > 0 and body or false, limit, now, KEYS[2])
end
if ttl <= 0 then
  return { 0, limit.capacity, 0, 0 }
end
now = now + ttl * 1000
state = algorithm.load(body, limit, now, KEYS[2])
local remaining, reset_us = algorithm.status(state, limit, now)
return { algorithm.earliest(state, limit, math.min(2, limit.capacity), now, now, '') - now, remaining, reset_us, ttl }
`

// Law 12: when a state expires it says the same as none, to the microsecond, although keys
// live for whole milliseconds and tokens are worth parts of a microsecond.
func TestStatesExpireWhenTheySayNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"token_bucket", "interval_bucket", "fixed_window", "fixed_window first", "sliding_window", "spacing"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				client := server.Client()
				now := 1_700_000_000_123_000
				if name == "sliding_window" {
					now-- // buckets begin a microsecond later than a millisecond
				}
				require.NoError(t, client.Set(t.Context(), "{t}clock", now, 0).Err())
				clock := read("parts/clock.lua") + "now_us = function() return tonumber(redis.call('GET', '{t}clock')) end\n"
				probe := redis.NewScript(strip(clock + part("read") + makers() + part("policy") + "next_text()\n" + ttlProbe))
				random := rand.New(rand.NewPCG(12, 12))
				for range 300 {
					// A token is worth a few whole milliseconds, and a part of a microsecond or two.
					limit := Limit{Algorithm: strings.TrimSuffix(name, " first"), Option: "-", Count: 1 + random.Int64N(9)}
					limit.PeriodUS = limit.Count*1000*(1+random.Int64N(20)) + random.Int64N(limit.Count+2)
					limit.Capacity = limit.Count
					switch name {
					case "token_bucket", "interval_bucket":
						limit.Capacity = 1 + random.Int64N(9)
					case "sliding_window":
						limit.Extra = limit.PeriodUS / 1000 * 1000
						limit.PeriodUS = 10 * limit.Extra
					case "fixed_window first":
						limit.Option = "first"
					}
					steps := 1 + random.Int64N(6)
					args := append(Head(limit), "ttl", steps)
					for range steps {
						later := random.Int64N(2) * 1000 * random.Int64N(10)
						args = append(args, 1+random.Int64N(min(3, limit.Capacity)), random.Int64N(3*limit.PeriodUS), later)
					}
					reply, err := probe.Run(t.Context(), client, []string{"{t}freeze", "{t}l"}, args...).Int64Slice()
					require.NoError(t, err)
					full := limit.Capacity
					if name == "spacing" {
						full = 1
					}
					if reply[3] > 0 {
						require.Equal(t, []int64{0, full, 0}, reply[:3], fmt.Sprintf("%+v %v", limit, args))
					}
				}
			})
		})
	}
}
