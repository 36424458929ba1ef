package lua

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// slotClock has keys live for longer than a test takes.
const slotClock = `
local function int(n) return string.format('%d', n) end
local function ttl_ms() return 10000000 end
`

// slotCalls calls functions of a concurrency limit of 5 slots one after the other, and
// answers what each returned. KEYS[1] is its state; ARGV is the time, and for each call its
// name, who, a cost and an instant.
const slotCalls = `
local limit, now = { count = 5, period_us = 1000000 }, ARGV[1] + 0
local state, reply = concurrency.load(false, limit, now, KEYS[1]), {}
for i = 2, #ARGV, 4 do
  local who, cost, at = ARGV[i + 1], ARGV[i + 2] + 0, ARGV[i + 3] + 0
  reply[#reply + 1] = ({
    free = function() return concurrency.free(state, limit, now) end,
    has = function() return concurrency.has(state, cost, now, who) and 1 or 0 end,
    let_go = function() return concurrency.let_go(state, now, who) and 1 or 0 end,
    hand = function() return (concurrency.hand(state, limit, cost + 1, cost, now, who, at) or 0) > 0 and 1 or 0 end,
    take = function() return concurrency.take(state, limit, cost, at, now, who) end,
  })[ARGV[i]]()
end
concurrency.save(state, limit, now, KEYS[1])
return reply`

// What the waiting line does with slots, in any order and several times in one call: by
// the definition of a lease, for tasks that hold at most one each.
func TestSlotsInTheHandsOfTheLine(t *testing.T) {
	t.Parallel()
	type lease struct{ cost, ends int64 }
	script := redis.NewScript(slotClock + read("algorithms/concurrency.lua") + slotCalls)
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		random, now := rand.New(rand.NewPCG(10, 1)), int64(1_700_000_000_000_000)
		leases := map[string]lease{}
		live := func(who string) (l lease) {
			if l = leases[who]; l.ends <= now {
				return lease{}
			}
			return l
		}
		free := func(but string) int64 {
			left := int64(5)
			for who := range leases {
				if who != but {
					left -= live(who).cost
				}
			}
			return left
		}
		for range 400 {
			now += random.Int64N(400_000)
			args, want := []any{now}, []int64{}
			for range 1 + random.IntN(5) {
				name := []string{"free", "has", "let_go", "hand", "take"}[random.IntN(5)]
				who, cost, at := strconv.Itoa(random.IntN(6)), 1+random.Int64N(3), now+1+random.Int64N(600_000)
				own, is := live(who), func(ok bool) int64 {
					if ok {
						return 1
					}
					return 0
				}
				switch name {
				case "free":
					want = append(want, max(0, free("")))
				case "has":
					want = append(want, is(own.cost >= cost))
				case "let_go":
					want = append(want, is(own.cost > 0))
					delete(leases, who)
				case "hand":
					ok := own.cost == 0 && free("") > cost // or else it has one, which must not be cut short
					want = append(want, is(ok))
					if ok {
						leases[who] = lease{cost, at}
					}
				case "take": // whatever is free, as reserve never does
					want = append(want, -1)
					leases[who] = lease{cost, at + 1_000_000}
				}
				args = append(args, name, who, cost, at)
			}
			reply, err := script.Run(t.Context(), server.Client(), []string{"{t}slots"}, args...).Int64Slice()
			require.NoError(t, err)
			for i, n := range want {
				if n >= 0 {
					require.Equal(t, n, reply[i], "call %d of %s", i, fmt.Sprint(args...))
				}
			}
		}
	})
}
