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
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// stressor in the environment makes this test program one of the processes that put
// limits under stress; its value is the stress as JSON.
const stressor = "RAMPMETER_TEST_STRESSOR"

// stress is what each process of a stress test does.
type stress struct {
	Redis  string
	Limits []policy.Limit // each in a policy of its name
	// Asks is how often each caller asks every limit, while all of them move the clock on.
	Asks int
	// Until is for how long, by real time, tasks of the length Task run under one limit.
	Until time.Time
	Task  time.Duration
}

// run is a task of a stress test: its slot by Redis's clock, in µs since the epoch, and
// when it started and ended by its caller's, in ns.
type run struct {
	Limit            string
	Slot, Start, End int64
	Inside           int64 // how many were, with this one
}

const (
	stressProcesses = 4
	stressCallers   = 50 // in each process
	stressRate      = 400
	stressSlots     = 20
)

// askAgain is when a caller asks again that was denied for want of a slot that a task
// holds: nothing tells when that ends.
const askAgain = 50 * time.Millisecond

// stressed are limits of a rate, and what their definitions say of the slots they grant.
func stressed() []judged {
	second := policy.Rate{Count: stressRate, Period: time.Second}
	perSecond := func(starts []time.Time) int { return throttletest.MaxInAnyInterval(starts, time.Second) }
	interval := bucket("interval_bucket", stressRate, time.Second, stressRate)
	interval.Refill = policy.RefillInterval
	return []judged{
		{bucket("token_bucket", stressRate, time.Second, 20), 20, func(starts []time.Time) int {
			return throttletest.MaxBurst(starts, stressRate, time.Second)
		}},
		{interval, 2 * stressRate, perSecond}, // a full bucket and a refill
		{window("fixed_window_clock", stressRate, time.Second, policy.AnchorClock), stressRate, func(starts []time.Time) int {
			return throttletest.MaxPerWindow(starts, time.Second, time.Unix(0, 0))
		}},
		{window("fixed_window_first", stressRate, time.Second, policy.AnchorFirst), stressRate, func(starts []time.Time) int {
			return throttletest.MaxPerOpenedWindow(starts, time.Second)
		}},
		{spacing("spacing", stressRate, time.Second), 1, apart(stressRate, time.Second)},
		{policy.Limit{Name: "sliding_log", Algorithm: policy.SlidingLog, Rate: second}, stressRate, perSecond},
		{policy.Limit{
			Name: "sliding_window", Algorithm: policy.SlidingWindow, Precision: 5 * time.Millisecond, Rate: second,
		}, stressRate, perSecond},
	}
}

// Law 1, judged by the slots that were granted and not by any counter of the limiter:
// 200 callers in four processes want more than the limits allow, all the time. Not one
// slot is beyond them, and none is left unused (law 6). Of slots that tasks hold, never
// more are held than there are, and in the end all have come back.
func TestStress(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	judges := stressed()
	limits := []policy.Limit{{Name: "slots", Algorithm: policy.Concurrency, Slots: stressSlots}}
	for i := range judges {
		limits = append(limits, judges[i].limit)
	}
	require.NoError(t, server.Client().Set(t.Context(), clockKey, noon.UnixMicro(), 0).Err())
	runs := puts(t, stress{Redis: server.Addr(), Limits: limits, Asks: 20})
	for _, judge := range judges {
		slots := slotsOf(runs, judge.limit.Name)
		require.NotEmpty(t, slots)
		assert.LessOrEqual(t, int64(judge.count(slots)), judge.most, judge.limit.Name)
		used := throttletest.Used(slots, 1, stressRate, time.Second)
		assert.GreaterOrEqual(t, used, 0.98*usable(judge.limit), judge.limit.Name)
	}
	most := int64(0)
	for _, r := range runs {
		most = max(most, r.Inside)
	}
	assert.Positive(t, most)
	assert.LessOrEqual(t, most, int64(stressSlots), "tasks inside at once")
	left, err := server.Client().Exists(t.Context(), "rm:{slots}:slots").Result()
	require.NoError(t, err)
	assert.Zero(t, left, "slots still held")
}

// slotsOf returns the slots of a limit's runs, in order.
func slotsOf(runs []run, limit string) (slots []time.Time) {
	for _, r := range runs {
		if r.Limit == limit {
			slots = append(slots, time.UnixMicro(r.Slot))
		}
	}
	slices.SortFunc(slots, time.Time.Compare)
	return slots
}

// usable is the share of its rate that a limit lets steady demand use: a sliding
// window counts a start for up to a bucket longer than it must, and a spacing saves
// nothing up: what nobody asks for in time is gone.
func usable(l policy.Limit) float64 {
	switch l.Algorithm {
	case policy.SlidingWindow:
		return float64(l.Rate.Period) / float64(l.Rate.Period+l.Precision)
	case policy.Spacing:
		return 0.95
	default:
		return 1
	}
}

// puts puts limits under stress and returns what ran.
func puts(t *testing.T, s stress) (runs []run) {
	t.Helper()
	order, err := json.Marshal(s)
	require.NoError(t, err)
	outputs := make([]bytes.Buffer, stressProcesses)
	commands := make([]*exec.Cmd, stressProcesses)
	for i := range commands {
		commands[i] = exec.CommandContext(t.Context(), os.Args[0])
		commands[i].Env = append(os.Environ(), stressor+"="+string(order))
		commands[i].Stdout, commands[i].Stderr = &outputs[i], t.Output()
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

// takePart is the life of one process of a stress test: it prints what it ran.
func takePart(order string) error {
	var s stress
	if err := json.Unmarshal([]byte(order), &s); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis})
	defer client.Close()
	config := new(policy.Config)
	for _, limit := range s.Limits {
		config.Policies = append(config.Policies, policy.Policy{Name: limit.Name, Limits: []policy.Limit{limit}})
	}
	limiter, err := throttle.New(client, config)
	if err != nil {
		return err
	}
	call := s.call
	if s.Asks > 0 {
		throttle.RunByClockKey(limiter, clockKey)
		call = func(limiter *throttle.Limiter) ([]run, error) { return s.ask(limiter, client) }
	}
	var (
		mu     sync.Mutex
		runs   []run
		failed []error
		all    sync.WaitGroup
	)
	for range stressCallers {
		all.Go(func() {
			own, err := call(limiter)
			mu.Lock()
			defer mu.Unlock()
			runs, failed = append(runs, own...), append(failed, err)
		})
	}
	all.Wait()
	return errors.Join(append(failed, json.NewEncoder(os.Stdout).Encode(runs))...)
}

// ask asks all limits in turn, and then moves the clock on by a millisecond, so that
// more is always asked for than that brings. A slot that a task holds is held until the
// next turn.
func (s stress) ask(limiter *throttle.Limiter, client *redis.Client) (runs []run, err error) {
	ctx := context.Background()
	var held *throttle.Reservation
	release := func() error {
		if held == nil {
			return nil
		}
		err := client.Decr(ctx, "inside").Err()
		return errors.Join(err, held.Release(ctx))
	}
	for n := range s.Asks {
		if err := release(); err != nil {
			return nil, err
		}
		held = nil
		for _, limit := range s.Limits {
			r, err := limiter.Reserve(ctx, throttle.Request{Policy: limit.Name, MaxWait: time.Duration(n%2) * 2 * time.Second})
			if err != nil {
				return nil, fmt.Errorf("a caller: %w", err)
			}
			if r.Outcome != throttle.Granted {
				continue
			}
			own := run{Limit: limit.Name, Slot: r.At.UnixMicro()}
			if limit.Algorithm == policy.Concurrency {
				held = r
				if own.Inside, err = client.Incr(ctx, "inside").Result(); err != nil {
					return nil, err
				}
			}
			runs = append(runs, own)
		}
		if err := client.IncrBy(ctx, clockKey, time.Millisecond.Microseconds()).Err(); err != nil {
			return nil, err
		}
	}
	return runs, release()
}

// call runs tasks as often as its limit allows, by real time.
func (s stress) call(limiter *throttle.Limiter) (runs []run, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), s.Until)
	defer cancel()
	for {
		r, err := limiter.Reserve(ctx, throttle.Request{Policy: s.Limits[0].Name, MaxWait: 2 * time.Second})
		if err == nil {
			err = r.Wait(ctx)
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
		default:
			<-time.After(min(throttled.RetryAfter, askAgain))
		}
	}
}

// task is one task, admitted by r.
func (s stress) task(r *throttle.Reservation) (run, error) {
	ctx := context.Background()
	own := run{Limit: r.Policy, Slot: r.At.UnixMicro(), Start: time.Now().UnixNano()}
	r.Hold(ctx)
	if s.Task > 0 {
		<-time.After(s.Task)
	}
	own.End = time.Now().UnixNano()
	return own, r.Release(ctx)
}
