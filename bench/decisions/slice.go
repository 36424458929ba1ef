package decisions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// slice is what one contender did in one turn.
type slice struct {
	decisions int
	errors    int
	err       error // one of them
	elapsed   time.Duration
	latencies histogram
	redisCPU  time.Duration
}

func (s *slice) perSecond() float64 { return float64(s.decisions) / s.elapsed.Seconds() }

// cpuPerDecision is in microseconds.
func (s *slice) cpuPerDecision() float64 {
	if s.decisions == 0 {
		return 0
	}
	return float64(s.redisCPU.Nanoseconds()) / 1000 / float64(s.decisions)
}

// measure lets callers decide on random ones of the keys for as long as a turn
// lasts. It returns early when ctx ends. The admin client watches Redis's CPU.
func measure(ctx context.Context, admin *redis.Client, decide decide, callers, keys int, turn time.Duration) (*slice, error) {
	before, err := redisCPU(ctx, admin)
	if err != nil {
		return nil, err
	}
	parts := make([]slice, callers)
	var over atomic.Bool
	var wg sync.WaitGroup
	began := time.Now()
	for i := range parts {
		wg.Go(func() { parts[i].call(ctx, decide, keys, &over) })
	}
	timer := time.NewTimer(turn)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	over.Store(true)
	wg.Wait()

	whole := &slice{elapsed: time.Since(began)}
	for i := range parts {
		whole.add(&parts[i])
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	after, err := redisCPU(ctx, admin)
	whole.redisCPU = after - before
	return whole, err
}

// call is one caller: it asks once at least, and again as soon as it has its answer.
func (s *slice) call(ctx context.Context, decide decide, keys int, over *atomic.Bool) {
	began := time.Now()
	for asks := true; asks; asks = !over.Load() {
		err := decide(ctx, rand.IntN(keys))
		ended := time.Now()
		if err != nil {
			s.errors++
			s.err = err
		} else {
			s.decisions++
			s.latencies.record(ended.Sub(began))
		}
		began = ended
	}
}

func (s *slice) add(part *slice) {
	s.decisions += part.decisions
	s.errors += part.errors
	s.latencies.add(&part.latencies)
	// A denial says more than other errors: the limit was not generous enough.
	if s.err == nil || errors.Is(part.err, errDenied) {
		s.err = part.err
	}
}

// redisCPU is the CPU time that Redis has used so far.
func redisCPU(ctx context.Context, admin *redis.Client) (time.Duration, error) {
	info, err := admin.Info(ctx, "cpu").Result()
	if err != nil {
		return 0, err
	}
	return parseCPU(info)
}

func parseCPU(info string) (time.Duration, error) {
	var sum float64
	found := 0
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_user" && name != "used_cpu_sys" {
			continue
		}
		seconds, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("INFO cpu: %w", err)
		}
		sum += seconds
		found++
	}
	if found != 2 {
		return 0, errors.New("INFO cpu: there is no used_cpu_user and used_cpu_sys")
	}
	return time.Duration(sum * float64(time.Second)), nil
}
