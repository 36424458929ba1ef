package throttle_test

import (
	"bytes"
	"cmp"
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
	// Task is how long a task runs, where that matters.
	Task time.Duration
}

// run is when a task of a siege started and ended, in ns since the epoch.
type run struct{ Start, End int64 }

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

// siegePrecision is how long a bucket is: on a busy machine, long against how late a
// caller may wake, or all of its starts would come too late.
func siegePrecision() time.Duration {
	if os.Getenv("RAMPMETER_SIEGE") != "" {
		return 5 * time.Millisecond
	}
	return 50 * time.Millisecond
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
			perSecond, // in whole seconds: its slots keep far enough from each other
			func(starts []time.Time) int {
				return throttletest.MaxInAnyInterval(starts, time.Second-late+throttle.Lateness)
			},
		},
		{
			throttle.Limit{Name: "sliding_window", Algorithm: throttle.SlidingWindow, Precision: siegePrecision(), Rate: second},
			perSecond,
			func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, time.Second-late) },
		},
	} {
		t.Run(test.limit.Name, func(t *testing.T) {
			server := throttletest.Redis(t)
			starts := beganAt(besiege(t, siege{
				Redis: server.Addr(), Limit: test.limit, Callers: siegeCallers, Until: time.Now().Add(siegeTime(t)),
			}))
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

// The same for slots: never more tasks run than there are, and they are kept busy.
func TestSiegeOfSlots(t *testing.T) {
	const slots = 20
	server := throttletest.Redis(t)
	runs := besiege(t, siege{
		Redis: server.Addr(), Callers: siegeCallers, Until: time.Now().Add(siegeTime(t)), Task: 500 * time.Millisecond,
		Limit: throttle.Limit{Name: "slots", Algorithm: throttle.Concurrency, Slots: slots},
	})
	require.NotEmpty(t, runs)
	most, used := atOnce(runs), inUse(runs, slots)
	t.Logf("%d runs, at most %d of %d at once, %.2f %% used", len(runs), most, slots, 100*used)
	assert.LessOrEqual(t, most, slots)
	least := 0.9 // a short siege on a busy machine
	if os.Getenv("RAMPMETER_SIEGE") != "" {
		least = 0.995
	}
	assert.GreaterOrEqual(t, used, least)
}

// atOnce is how many of the runs ran at one time, at most.
func atOnce(runs []run) int {
	type event struct{ at, change int64 }
	var events []event
	for _, r := range runs {
		events = append(events, event{r.Start, 1}, event{r.End, -1})
	}
	slices.SortFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.change, b.change))
	})
	var running, most int64
	for _, e := range events {
		running += e.change
		most = max(most, running)
	}
	return int(most)
}

// inUse is the share of the slots' time, while there were runs to start, that runs
// took.
func inUse(runs []run, slots int64) float64 {
	first, last := runs[0].Start, runs[0].Start
	for _, r := range runs {
		first, last = min(first, r.Start), max(last, r.Start)
	}
	var taken int64
	for _, r := range runs {
		taken += min(r.End, last) - r.Start
	}
	return float64(taken) / float64(slots*(last-first))
}

// beganAt returns when runs started, in order.
func beganAt(runs []run) []time.Time {
	var starts []time.Time
	for _, r := range runs {
		starts = append(starts, time.Unix(0, r.Start))
	}
	slices.SortFunc(starts, time.Time.Compare)
	return starts
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

// besiege runs the processes and returns what ran.
func besiege(t *testing.T, s siege) (runs []run) {
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
	for i, command := range commands {
		require.NoError(t, command.Wait())
		var own []run
		require.NoError(t, json.Unmarshal(outputs[i].Bytes(), &own))
		runs = append(runs, own...)
	}
	return runs
}

// takePart is the life of one process of a siege: it prints what it ran.
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
		runs   []run
		failed []error
		all    sync.WaitGroup
	)
	for range s.Callers {
		all.Go(func() {
			own, err := s.call(limiter)
			mu.Lock()
			defer mu.Unlock()
			runs, failed = append(runs, own...), append(failed, err)
		})
	}
	all.Wait()
	return errors.Join(append(failed, json.NewEncoder(os.Stdout).Encode(runs))...)
}

// call runs tasks as often as the limit allows, and returns when.
func (s siege) call(limiter *throttle.Limiter) (runs []run, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), s.Until)
	defer cancel()
	for {
		r, err := limiter.Reserve(ctx, throttle.Request{Policy: "siege", MaxWait: 2 * time.Second})
		if err == nil {
			if err = r.AwaitSlot(ctx); err == nil {
				err = r.Wait(ctx)
			}
		}
		throttled := (*throttle.ThrottledError)(nil)
		switch {
		case err == nil:
			own, err := s.task(r)
			if err != nil {
				return nil, err
			}
			runs = append(runs, own)
		case ctx.Err() != nil:
			return runs, nil
		case !errors.As(err, &throttled):
			return nil, fmt.Errorf("a caller: %w", err)
		}
	}
}

// task is one task, admitted by r.
func (s siege) task(r *throttle.Reservation) (run, error) {
	ctx := context.Background()
	own := run{Start: time.Now().UnixNano()}
	r.Hold(ctx)
	if s.Task > 0 {
		<-time.After(s.Task)
	}
	own.End = time.Now().UnixNano()
	return own, r.Release(ctx)
}
