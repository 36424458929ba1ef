package throttle_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A parked task takes little memory, and a wake costs the same however many stand in
// line. RAMPMETER_LINE_TASKS says how many; a million has been tried.
func TestLongLines(t *testing.T) {
	t.Parallel()
	most := fromEnvironment(t, "RAMPMETER_LINE_TASKS", 20_000)
	server := throttletest.Redis(t)
	client := server.Client()
	limiter, err := throttle.New(client, &throttle.Config{Policies: []throttle.Policy{{
		Name: "api", Lane: "lane", Limits: []throttle.Limit{bucket("rate", 100, time.Minute, 1)},
	}}})
	require.NoError(t, err)

	before := info(t, client, "used_memory")
	park(t, limiter, 0, 1000)
	short := wakeCommands(t, client, limiter)
	park(t, limiter, 1000, most)
	// A longer line also has tasks that are woken by the time of the second call.
	assert.LessOrEqual(t, wakeCommands(t, client, limiter), short+8, "a wake costs the same")

	perTask := float64(info(t, client, "used_memory")-before) / float64(most)
	assert.LessOrEqual(t, perTask, 250.0, "bytes of a parked task")
	t.Logf("%d tasks: %.0f bytes each, %d commands for a wake", most, perTask, short)
}

// park lets the tasks with these numbers join the line of one of ten lanes.
func park(t *testing.T, limiter *throttle.Limiter, from, to int) {
	t.Helper()
	numbers := make(chan int)
	var parking sync.WaitGroup
	for range 200 {
		parking.Go(func() {
			for n := range numbers {
				_, err := limiter.Reserve(t.Context(), throttle.Request{
					Policy: "api", Park: true, TaskID: fmt.Sprintf("default/%08d-0000-4000-8000-000000000000", n),
					Attributes: map[string]string{"lane": fmt.Sprint(n % 10)},
				})
				assert.NoError(t, err)
			}
		})
	}
	for n := range to - from {
		numbers <- from + n
	}
	close(numbers)
	parking.Wait()
}

// fromEnvironment is a number that the environment may say.
func fromEnvironment(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	return n
}

// info reads a number of Redis's INFO.
func info(t *testing.T, client *redis.Client, name string) int64 {
	t.Helper()
	text, err := client.Info(t.Context()).Result()
	require.NoError(t, err)
	_, rest, found := strings.Cut(text, "\n"+name+":")
	require.True(t, found, name)
	value, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.ParseInt(value, 10, 64)
	require.NoError(t, err, name)
	return n
}

// wakeCommands is how many commands Redis runs for one wake.
func wakeCommands(t *testing.T, client *redis.Client, limiter *throttle.Limiter) int64 {
	t.Helper()
	before := info(t, client, "total_commands_processed")
	_, err := limiter.Wake(t.Context(), "api", throttle.Waking{As: "us", Near: 350 * time.Millisecond})
	require.NoError(t, err)
	return info(t, client, "total_commands_processed") - before
}
