package throttle_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// besieger in the environment makes this test program one of the processes that
// besiege a limit; its value is the siege as JSON.
const besieger = "RAMPMETER_TEST_BESIEGER"

// siege is what each process of a siege does.
type siege struct {
	Redis   string
	Limit   throttle.Limit
	Callers int
	Until   time.Time
}

const (
	siegeProcesses = 4
	siegeCallers   = 50 // in each process
	// siegeBusy is what a busy machine may add before a caller has noted its start. A
	// siege that was asked for runs on a quiet one, and nothing is added.
	siegeBusy = 80 * time.Millisecond
)

// siegeLate is how much closer together starts may be than their slots.
func siegeLate() time.Duration {
	if os.Getenv("RAMPMETER_SIEGE") != "" {
		return throttle.Lateness
	}
	return throttle.Lateness + siegeBusy
}

// siegeTime is how long each algorithm is besieged. RAMPMETER_SIEGE sets another
// duration, such as 60s.
func siegeTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("RAMPMETER_SIEGE")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "RAMPMETER_SIEGE")
	return d
}

// Law 1, judged by the callers' own clocks and not by any counter of the limiter:
// 200 callers in four processes want more than the limit allows, all the time. Not
// one start is beyond it, and hardly any of the quota is left unused (law 6).
func TestSiege(t *testing.T) {
	const perSecond = 400
	second := throttle.Rate{Count: perSecond, Period: time.Second}
	late := siegeLate()
	for _, test := range []struct {
		limit throttle.Limit
		most  int64
		count func([]time.Time) int
	}{
		{
			throttle.Limit{Name: "token_bucket", Algorithm: throttle.TokenBucket, Rate: second, Burst: 20},
			20 + int64(perSecond*late/time.Second),
			func(starts []time.Time) int { return throttletest.MaxBurst(starts, perSecond, time.Second) },
		},
		{
			throttle.Limit{Name: "interval_bucket", Algorithm: throttle.TokenBucket, Refill: throttle.RefillInterval, Burst: perSecond, Rate: second},
			2 * perSecond, // a full bucket and a refill
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, time.Second-late) },
		},
		{
			throttle.Limit{Name: "fixed_window_clock", Algorithm: throttle.FixedWindow, Rate: second},
			perSecond,
			func(starts []time.Time) int {
				return throttletest.MaxPerWindow(notedInTime(starts), time.Second, time.Unix(0, 0))
			},
		},
		{
			throttle.Limit{Name: "fixed_window_first", Algorithm: throttle.FixedWindow, Anchor: throttle.AnchorFirst, Rate: second},
			perSecond,
			func(starts []time.Time) int { return throttletest.MaxPerOpenedWindow(starts, time.Second-late) },
		},
		{
			throttle.Limit{Name: "sliding_log", Algorithm: throttle.SlidingLog, Rate: second},
			perSecond,
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, time.Second-late) },
		},
		{
			throttle.Limit{Name: "sliding_window", Algorithm: throttle.SlidingWindow, Precision: 5 * time.Millisecond, Rate: second},
			perSecond,
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, time.Second-late) },
		},
	} {
		t.Run(test.limit.Name, func(t *testing.T) {
			server := throttletest.Redis(t)
			starts := besiege(t, siege{
				Redis: server.Addr(), Limit: test.limit, Callers: siegeCallers, Until: time.Now().Add(siegeTime(t)),
			})
			require.NotEmpty(t, starts)
			most, used := test.count(starts), throttletest.Used(starts, 1, perSecond, time.Second)
			t.Logf("%d starts, at most %d of %d, %.2f %% used", len(starts), most, test.most, 100*used)
			assert.LessOrEqual(t, int64(most), test.most)
			least := 0.95 // a short siege on a busy machine
			if os.Getenv("RAMPMETER_SIEGE") != "" {
				least = 0.995
			}
			assert.GreaterOrEqual(t, used, least*usable(test.limit))
		})
	}
}

// notedInTime leaves out the starts that may have been noted a window late.
func notedInTime(starts []time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(starts), func(at time.Time) bool {
		return at.Sub(at.Truncate(time.Second)) < siegeLate()-throttle.Lateness
	})
}

// usable is the share of its rate that a limit lets steady demand use: a sliding
// window counts a start for up to a bucket longer than it must.
func usable(l throttle.Limit) float64 {
	if l.Algorithm == throttle.SlidingWindow {
		return float64(l.Rate.Period) / float64(l.Rate.Period+l.Precision)
	}
	return 1
}

// besiege runs the processes and returns when each start was, in order.
func besiege(t *testing.T, s siege) []time.Time {
	t.Helper()
	order, err := json.Marshal(s)
	require.NoError(t, err)
	ctx, cancel := context.WithDeadline(t.Context(), s.Until.Add(30*time.Second))
	defer cancel()
	outputs := make([]bytes.Buffer, siegeProcesses)
	commands := make([]*exec.Cmd, siegeProcesses)
	for i := range commands {
		commands[i] = exec.CommandContext(ctx, os.Args[0])
		commands[i].Env = append(os.Environ(), besieger+"="+string(order))
		commands[i].Stdout, commands[i].Stderr = &outputs[i], os.Stderr
		require.NoError(t, commands[i].Start())
	}
	var starts []time.Time
	for i, command := range commands {
		require.NoError(t, command.Wait())
		var own []int64
		require.NoError(t, json.Unmarshal(outputs[i].Bytes(), &own))
		for _, at := range own {
			starts = append(starts, time.Unix(0, at))
		}
	}
	slices.SortFunc(starts, time.Time.Compare)
	return starts
}

// takePart is the life of one process of a siege: it prints when it started what.
func takePart(order string) error {
	var s siege
	if err := json.Unmarshal([]byte(order), &s); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis})
	defer client.Close()
	limiter, err := throttle.New(client, &throttle.Config{
		Policies: []throttle.Policy{{Name: "siege", Limits: []throttle.Limit{s.Limit}}},
	})
	if err != nil {
		return err
	}
	var (
		mu     sync.Mutex
		starts []int64
		failed []error
		all    sync.WaitGroup
	)
	for range s.Callers {
		all.Go(func() {
			own, err := call(limiter, s.Until)
			mu.Lock()
			defer mu.Unlock()
			starts, failed = append(starts, own...), append(failed, err)
		})
	}
	all.Wait()
	return errors.Join(append(failed, json.NewEncoder(os.Stdout).Encode(starts))...)
}

// call starts as often as the limit allows, and returns when.
func call(limiter *throttle.Limiter, until time.Time) (starts []int64, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	for {
		r, err := limiter.Reserve(ctx, throttle.Request{Policy: "siege", MaxWait: 2 * time.Second})
		if err == nil {
			err = r.Wait(ctx)
		}
		throttled := (*throttle.ThrottledError)(nil)
		switch {
		case err == nil:
			starts = append(starts, time.Now().UnixNano())
		case ctx.Err() != nil:
			return starts, nil
		case !errors.As(err, &throttled):
			return nil, fmt.Errorf("a caller: %w", err)
		}
	}
}
