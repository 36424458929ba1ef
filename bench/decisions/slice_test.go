package decisions

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestParseCPU(t *testing.T) {
	t.Parallel()
	got, err := parseCPU("# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\nused_cpu_user_main_thread:2.0\r\n")
	require.NoError(t, err)
	assert.Equal(t, 3750*time.Millisecond, got)

	_, err = parseCPU("# CPU\r\n")
	require.ErrorContains(t, err, "used_cpu_user")
	_, err = parseCPU("used_cpu_sys:much\r\n")
	require.ErrorContains(t, err, "much")
}

func TestMeasureCountsWhatHappened(t *testing.T) {
	t.Parallel()
	admin := throttletest.Redis(t).Client()
	var calls, odd atomic.Int64
	failure := errors.New("odd")
	got, err := measure(t.Context(), admin, func(ctx context.Context, i int) error {
		assert.Less(t, i, 7)
		if calls.Add(1)%2 == 1 {
			odd.Add(1)
			return failure
		}
		return admin.Ping(ctx).Err()
	}, 3, 7, 20*time.Millisecond)
	require.NoError(t, err)
	assert.EqualValues(t, calls.Load()-odd.Load(), got.decisions)
	assert.EqualValues(t, odd.Load(), got.errors)
	assert.Equal(t, got.decisions, got.latencies.total, "only decisions have a latency")
	require.ErrorIs(t, got.err, failure)
	assert.GreaterOrEqual(t, got.elapsed, 20*time.Millisecond)
	assert.Positive(t, got.redisCPU)
}

func TestMeasureEndsWithItsContext(t *testing.T) {
	t.Parallel()
	admin := throttletest.Redis(t).Client()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := measure(ctx, admin, func(context.Context, int) error {
		cancel()
		return nil
	}, 2, 1, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
}
