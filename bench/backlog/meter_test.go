package backlog

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
	m, err := newMeter(t.Context(), server.Options())
	require.NoError(t, err)
	defer m.close()
	client := server.Client()
	require.NoError(t, client.Ping(t.Context()).Err()) // so that it is connected

	before, err := m.commands(t.Context())
	require.NoError(t, err)
	for range 5 {
		again, err := m.commands(t.Context())
		require.NoError(t, err)
		assert.Equal(t, before, again, "looking is not counted")
	}
	script := "redis.call('SET', KEYS[1], 1, 'PX', 60000) redis.call('GET', KEYS[1]) return redis.call('TIME')"
	require.NoError(t, client.Eval(t.Context(), script, []string{"k"}).Err())
	require.NoError(t, client.Get(t.Context(), "k").Err())
	require.NoError(t, m.exclude(t.Context(), func() error {
		for range 7 {
			if err := client.Get(t.Context(), "k").Err(); err != nil {
				return err
			}
		}
		return nil
	}))
	after, err := m.commands(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1+3+1, after-before, "a script, its three commands, and one GET")
}

func TestMeterTellsWhatCouldNotBeDone(t *testing.T) {
	t.Parallel()
	m, err := newMeter(t.Context(), throttletest.Redis(t).Options())
	require.NoError(t, err)
	defer m.close()
	failure := errors.New("no")
	require.ErrorIs(t, m.exclude(t.Context(), func() error { return failure }), failure)
}

func TestBytesAreOfOurKeysAlone(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	m, err := newMeter(t.Context(), server.Options())
	require.NoError(t, err)
	defer m.close()
	bytes, err := m.bytes(t.Context())
	require.NoError(t, err)
	assert.Zero(t, bytes)

	want := int64(0)
	for i := range 100 {
		key := "rm:{api}:" + strconv.Itoa(i)
		require.NoError(t, server.Client().Set(t.Context(), key, "value", time.Hour).Err())
		require.NoError(t, server.Client().Set(t.Context(), "asynq:"+key, "value", time.Hour).Err())
		want += server.Client().MemoryUsage(t.Context(), key).Val()
	}
	bytes, err = m.bytes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, want, bytes)
}

func TestInfoNumber(t *testing.T) {
	t.Parallel()
	got, err := infoNumber("# Stats\r\nx_total:3\r\ntotal:42\r\n", "total")
	require.NoError(t, err)
	assert.EqualValues(t, 42, got)
	_, err = infoNumber("# Stats\r\n", "total")
	require.ErrorContains(t, err, "total")
}
