package decisions

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func meterOn(t *testing.T) *harness.Meter {
	t.Helper()
	meter, err := harness.NewMeter(t.Context(), throttletest.Redis(t).Options())
	require.NoError(t, err)
	t.Cleanup(meter.Close)
	return meter
}

func TestMeasureCountsWhatHappened(t *testing.T) {
	t.Parallel()
	meter := meterOn(t)
	var calls, odd atomic.Int64
	failure := errors.New("odd")
	got, err := measure(t.Context(), meter, func(ctx context.Context, i int) error {
		assert.Less(t, i, 7)
		if calls.Add(1)%2 == 1 {
			odd.Add(1)
			return failure
		}
		return meter.Client.Ping(ctx).Err()
	}, 3, 7, 20*time.Millisecond)
	require.NoError(t, err)
	assert.EqualValues(t, calls.Load()-odd.Load(), got.decisions)
	assert.EqualValues(t, odd.Load(), got.errors)
	assert.Len(t, got.latencies, got.decisions, "only decisions have a latency")
	require.ErrorIs(t, got.err, failure)
	assert.GreaterOrEqual(t, got.elapsed, 20*time.Millisecond)
	assert.Positive(t, got.redisCPU)
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	t.Parallel()
	meter := meterOn(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := measure(ctx, meter, func(context.Context, int) error {
		cancel()
		return nil
	}, 2, 1, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
}
