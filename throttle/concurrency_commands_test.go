package throttle_test

import (
	"fmt"
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

// commandsInside returns how many commands scripts have called while f ran, as the
// server counts them.
func commandsInside(t *testing.T, client *redis.Client, f func()) (calls int) {
	t.Helper()
	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	f()
	stats, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for line := range strings.Lines(stats) {
		name, values, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || name == "evalsha" || strings.HasPrefix(name, "config") {
			continue
		}
		number, _, _ := strings.Cut(values, ",")
		n, err := strconv.Atoi(number)
		require.NoError(t, err)
		calls += n
	}
	return calls
}

// Each step in the life of a slot costs few commands in Redis, however many slots are
// taken. Two are every script's own: the time, and the keys.
func TestConcurrencyCommands(t *testing.T) {
	t.Parallel()
	const own = 2
	b := newTestLimiterOn(t, throttletest.Redis(t), hourLong(20))
	at := func(d time.Duration) { b.at(d + time.Microsecond) } // when nothing is swept out
	at(0)
	r := b.ask("loads the scripts", 0)
	b.hold(r)
	b.renew()
	b.remaining()
	b.release(r)
	costs := func(most int, what string, f func()) {
		t.Helper()
		assert.LessOrEqual(t, commandsInside(t, b.client, f)-own, most, what)
	}
	take := func(task string) func() {
		return func() {
			r = b.ask(task, 0)
			assert.Equal(t, throttle.Granted, r.Outcome)
		}
	}

	costs(3, "take the first", take("first"))
	costs(2, "release the last", func() { b.release(r) })
	for i := range 17 {
		at(time.Duration(i) * time.Millisecond)
		b.ask(fmt.Sprint(i), 0)
	}
	costs(2, "take another in the same second", take("18"))
	at(time.Second)
	costs(3, "take another", take("19"))
	earlier := r
	costs(2, "enter again", take("18"))
	costs(2, "take the last one", take("20"))
	costs(2, "denied", func() { assert.Equal(t, throttle.Denied, b.ask("21", 0).Outcome) })
	costs(2, "peek", func() { assert.Zero(t, b.remaining()) })
	b.hold(earlier)
	at(2 * time.Second)
	costs(3, "renew", b.renew)
	at(2100 * time.Millisecond)
	b.hold(r)
	costs(3, "renew two in the same second", b.renew)
	at(2200 * time.Millisecond)
	b.ask("18", 0)
	costs(2, "release one of many", func() { b.release(earlier) })
	b.renew()
	costs(2, "release the one that ends last", func() { b.release(r) })
	at(2 * time.Hour)
	costs(7, "take after all have ended", take("after"))
}

// To stand by for a slot, and to be handed one, costs few commands, whatever else is in
// line; two are every script's own.
func TestStandingByCommands(t *testing.T) {
	t.Parallel()
	const own = 2
	server := throttletest.Redis(t)
	for name, isInLine := range map[string]bool{"nobody is in line": false, "others are in line": true} {
		t.Run(name, func(t *testing.T) {
			empty(t, server.Client())
			s := newStandby(t, newSimulation(t, server, policy.Policy{Limits: []policy.Limit{slotLimit(2)}}))
			s.at(time.Microsecond) // when nothing is swept out
			a, b := s.starts("a"), s.starts("b")
			for i := range 4 {
				s.at(time.Microsecond + time.Duration(i)*time.Millisecond)
				s.standsBy(fmt.Sprint(i), time.Second)
			}
			if isInLine {
				s.isParked("parked")
			}
			require.NoError(t, a.Release(t.Context()))
			s.at(7*time.Millisecond + time.Microsecond)
			costs := func(most int, what string, f func()) {
				t.Helper()
				assert.LessOrEqual(t, commandsInside(t, s.client, f)-own, most, what)
			}
			costs(7, "hand a slot over", func() { require.NoError(t, b.Release(t.Context())) })
			if !isInLine {
				costs(5, "stand by", func() { s.standsBy("more", time.Second) })
			}
		})
	}
}
