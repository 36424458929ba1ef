package lua

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// supplyOf asks an algorithm for the supply of a limit until ARGV[1].
const supplyOf = `
local state = states_of(1)[1]
local supply = limits[1].algorithm.supply(state, limits[1], next_number(), now)
return refuse(true) or supply
`

// logStart is a start of so many tokens.
type logStart struct{ at, tokens int64 }

// logStarts are those that a sliding log has allowed.
type logStarts struct {
	limit  Limit
	starts []logStart
}

// within counts the tokens of the interval of a period that begins then.
func (s *logStarts) within(from int64) (tokens int64) {
	for _, start := range s.starts {
		if start.at >= from && start.at < from+s.limit.PeriodUS {
			tokens += start.tokens
		}
	}
	return tokens
}

// passes tells whether one token more may start then.
func (s *logStarts) passes(at int64) bool {
	for from := at - s.limit.PeriodUS + 1; from <= at; from++ {
		if s.within(from) >= s.limit.Count {
			return false
		}
	}
	return true
}

// mostUntil counts how many tokens more may start: each as early as it can, which leaves
// the most room for others.
func (s *logStarts) mostUntil(now, till int64) (tokens int64) {
	more := logStarts{s.limit, slices.Clone(s.starts)}
	for at := now; at <= till; at++ {
		for more.passes(at) {
			more.starts = append(more.starts, logStart{at, 1})
			tokens++
		}
	}
	return tokens
}

// last is the instant of the last start, or 0.
func (s *logStarts) last() (at int64) {
	for _, start := range s.starts {
		at = max(at, start.at)
	}
	return at
}

// What a sliding log supplies may start by then, whatever slots lie ahead; and it is all
// that may, where no slot lies behind that instant, and no token can come back twice.
func TestSlidingLogSupply(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		client, random := server.Client(), rand.New(rand.NewPCG(3, 9))
		exact, less := 0, 0
		for range 12 {
			log := &logStarts{limit: Limit{Algorithm: "sliding_log", Count: 1 + random.Int64N(12), PeriodUS: 5 + random.Int64N(12)}}
			reserve := WithClock(shortcutClock, log.limit).Reserve
			supply := redis.NewScript(shortcutClock + policy([]Limit{log.limit}) + supplyOf)
			require.NoError(t, client.FlushDB(t.Context()).Err())
			keys, now := []string{"{t}freeze", "{t}log"}, int64(1_700_000_000_000_000)
			for range 60 {
				now += random.Int64N(log.limit.PeriodUS / 2)
				require.NoError(t, client.Set(t.Context(), "{t}clock", strconv.FormatInt(now, 10), 0).Err())
				if random.IntN(3) > 0 {
					cost, wait := 1+random.Int64N(log.limit.Count), random.Int64N(3*log.limit.PeriodUS)
					answer, err := reserve.Run(t.Context(), client, keys, 1, wait, "", 0, 2, cost).Int64Slice()
					require.NoError(t, err)
					if answer[3] == 1 {
						log.starts = append(log.starts, logStart{answer[2], cost})
					}
				}
				till := now + random.Int64N(2*log.limit.PeriodUS)
				got, err := supply.Run(t.Context(), client, keys, till).Int64()
				require.NoError(t, err)
				most := log.mostUntil(now, till)
				require.LessOrEqual(t, got, min(most, log.limit.Count), "%+v from %d until %d", log, now, till)
				if log.last() <= till && till < now+log.limit.PeriodUS {
					require.Equal(t, most, got, "%+v from %d until %d", log, now, till)
					exact++
				} else if got < most {
					less++
				}
			}
		}
		assert.Greater(t, exact, 50)
		assert.Greater(t, less, 20)
	})
}
