package backlog

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestBytesAreOfOurKeysAlone(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	bytes, err := memoryOfOurs(t.Context(), server.Client())
	require.NoError(t, err)
	assert.Zero(t, bytes)

	want := int64(0)
	for i := range 100 {
		key := "rm:{api}:" + strconv.Itoa(i)
		require.NoError(t, server.Client().Set(t.Context(), key, "value", time.Hour).Err())
		require.NoError(t, server.Client().Set(t.Context(), "asynq:"+key, "value", time.Hour).Err())
		want += server.Client().MemoryUsage(t.Context(), key).Val()
	}
	bytes, err = memoryOfOurs(t.Context(), server.Client())
	require.NoError(t, err)
	assert.Equal(t, want, bytes)
}
