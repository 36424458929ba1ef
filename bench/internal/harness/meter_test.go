package harness

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestMeterCountsCommandsOfScriptsAndNotItsOwn(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	m, err := NewMeter(t.Context(), server.Options())
	require.NoError(t, err)
	defer m.Close()
	client := server.Client()
	require.NoError(t, client.Ping(t.Context()).Err()) // so that it is connected

	before, err := m.Spent(t.Context())
	require.NoError(t, err)
	for range 5 {
		again, err := m.Spent(t.Context())
		require.NoError(t, err)
		assert.Zero(t, again.Sub(before).Commands, "looking is not counted")
	}
	script := "redis.call('SET', KEYS[1], 1, 'PX', 60000) redis.call('GET', KEYS[1]) return redis.call('TIME')"
	require.NoError(t, client.Eval(t.Context(), script, []string{"k"}).Err())
	require.NoError(t, client.Get(t.Context(), "k").Err())
	require.NoError(t, m.Exclude(t.Context(), func() error {
		for range 7 {
			if err := client.Get(t.Context(), "k").Err(); err != nil {
				return err
			}
		}
		return nil
	}))
	after, err := m.Spent(t.Context())
	require.NoError(t, err)
	spent := after.Sub(before)
	assert.EqualValues(t, 1+3+1, spent.Commands, "a script, its three commands, and one GET")
	assert.Positive(t, spent.CPU)
}

func TestMeterTellsWhatCouldNotBeDone(t *testing.T) {
	t.Parallel()
	m, err := NewMeter(t.Context(), throttletest.Redis(t).Options())
	require.NoError(t, err)
	defer m.Close()
	failure := errors.New("no")
	require.ErrorIs(t, m.Exclude(t.Context(), func() error { return failure }), failure)
}

func TestMeterNeedsARedisThatTellsOfItself(t *testing.T) {
	t.Parallel()
	m, err := NewMeter(t.Context(), throttletest.Embedded(t).Options())
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Spent(t.Context())
	require.Error(t, err)
}

func TestMemoryIsOfTheKeysThatMatch(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	m, err := NewMeter(t.Context(), server.Options())
	require.NoError(t, err)
	defer m.Close()
	bytes, err := m.Memory(t.Context(), "rm:*", 1000)
	require.NoError(t, err)
	assert.Zero(t, bytes)

	want := int64(0)
	for i := range 100 {
		key := "rm:{api}:" + strconv.Itoa(i)
		require.NoError(t, server.Client().Set(t.Context(), key, "value", time.Hour).Err())
		require.NoError(t, server.Client().Set(t.Context(), "asynq:"+key, "value", time.Hour).Err())
		want += server.Client().MemoryUsage(t.Context(), key).Val()
	}
	bytes, err = m.Memory(t.Context(), "rm:*", 1000)
	require.NoError(t, err)
	assert.Equal(t, want, bytes)
}
