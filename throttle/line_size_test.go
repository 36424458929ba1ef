package throttle_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A parked task takes little memory, and a wake costs the same however many stand in
// line.
func TestLongLines(t *testing.T) {
	t.Parallel()
	perTask, commands := longLines(t, 3000)
	assert.LessOrEqual(t, perTask, 250.0, "bytes of a parked task")
	assert.LessOrEqual(t, commands, int64(20), "for a wake")
}

// longLines lets so many tasks join a line, and returns how many bytes each takes and
// how many commands a wake runs: as many as with a thousand.
func longLines(t *testing.T, n int) (perTask float64, commands int64) {
	t.Helper()
	client := throttletest.Redis(t).Client()
	require.NoError(t, client.Set(t.Context(), simulationClock, noon.UnixMicro(), 0).Err())
	limiter, err := throttle.New(client, &policy.Config{Policies: []policy.Policy{
		{Name: "short", Lane: "lane", Limits: []policy.Limit{bucket("rate", 100, time.Minute, 1)}},
		{Name: "long", Lane: "lane", Limits: []policy.Limit{bucket("rate", 100, time.Minute, 1)}},
	}})
	require.NoError(t, err)
	throttle.RunByClockKey(limiter, simulationClock)
	wakeCommands(t, client, limiter, "short") // Redis gets to know the script
	park(t, limiter, "short", 1000)
	park(t, limiter, "long", n)

	bytes := int64(0)
	for _, key := range client.Keys(t.Context(), "rm:{long}*").Val() {
		bytes += client.MemoryUsage(t.Context(), key, 0).Val()
	}
	commands = wakeCommands(t, client, limiter, "long")
	assert.Equal(t, wakeCommands(t, client, limiter, "short"), commands, "a wake costs the same")
	return float64(bytes) / float64(n), commands
}

// park lets so many tasks join the line of a policy, in one of ten lanes.
func park(t *testing.T, limiter *throttle.Limiter, policy string, n int) {
	t.Helper()
	numbers := make(chan int)
	var parking sync.WaitGroup
	for range 200 {
		parking.Go(func() {
			for n := range numbers {
				_, err := limiter.Reserve(t.Context(), throttle.Request{
					Policy: policy, Park: true, TaskID: fmt.Sprintf("default/%08d-0000-4000-8000-000000000000", n),
					Attributes: map[string]string{"lane": fmt.Sprint(n % 10)},
				})
				assert.NoError(t, err)
			}
		})
	}
	for n := range n {
		numbers <- n
	}
	close(numbers)
	parking.Wait()
}

// wakeCommands is how many commands Redis runs for one wake.
func wakeCommands(t *testing.T, client *redis.Client, limiter *throttle.Limiter, policy string) int64 {
	t.Helper()
	before := commandsOf(t, client)
	_, err := limiter.Line(policy).Wake(t.Context(), line.Waking{As: "us", Near: near})
	require.NoError(t, err)
	return commandsOf(t, client) - before
}

// commandsOf is how many commands a Redis has run.
func commandsOf(t *testing.T, client *redis.Client) (n int64) {
	t.Helper()
	text, err := client.Info(t.Context(), "stats").Result()
	require.NoError(t, err)
	_, rest, _ := strings.Cut(text, "\ntotal_commands_processed:")
	_, err = fmt.Sscan(rest, &n)
	require.NoError(t, err)
	return n
}
