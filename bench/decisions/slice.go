package decisions

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// slice is what one contender did in one turn.
type slice struct {
	decisions int
	errors    int
	err       error // one of them
	elapsed   time.Duration
	latencies []time.Duration // of the decisions; sorted once all are there
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
// lasts. It returns early when ctx ends. The meter is for Redis's CPU.
func measure(ctx context.Context, meter *harness.Meter, decide decide, callers, keys int, turn time.Duration) (*slice, error) {
	before, err := meter.Spent(ctx)
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
	slices.Sort(whole.latencies)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	after, err := meter.Spent(ctx)
	whole.redisCPU = after.Sub(before).CPU
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
			s.latencies = append(s.latencies, ended.Sub(began))
		}
		began = ended
	}
}

func (s *slice) add(part *slice) {
	s.decisions += part.decisions
	s.errors += part.errors
	s.latencies = append(s.latencies, part.latencies...)
	// A denial says more than other errors: the limit was not generous enough.
	if s.err == nil || errors.Is(part.err, errDenied) {
		s.err = part.err
	}
}
