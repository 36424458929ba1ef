package throttletest

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStartEmbeddedListensWhereItIsTold(t *testing.T) {
	t.Parallel()
	first := Embedded(t)
	addr := first.Addr()

	_, err := StartEmbedded(EmbeddedConfig{Addr: addr})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, addr, "the message should say which address")

	require.NoError(t, first.Close())
	second, err := StartEmbedded(EmbeddedConfig{Addr: addr})
	require.NoError(t, err)
	defer second.Close()
	assert.Equal(t, addr, second.Addr())
	require.NoError(t, second.Client().Ping(t.Context()).Err())
}
