package throttletest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProxyBreaksAndMends(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		proxy := NewProxy(t, srv.Addr())
		client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		count := func() (int64, error) { return client.Incr(t.Context(), "n").Result() }
		isBroken := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			require.Error(t, client.Incr(ctx, "n").Err())
		}

		n, err := count()
		require.NoError(t, err)
		require.EqualValues(t, 1, n)

		proxy.LoseReply("INCR")
		require.False(t, proxy.Lost())
		_, err = count()
		require.Error(t, err, "the answer is lost")
		require.True(t, proxy.Lost())
		n, err = count()
		require.NoError(t, err)
		assert.EqualValues(t, 3, n, "the request was not")

		for _, fault := range []func(){proxy.Cut, proxy.Hold} {
			fault()
			isBroken()
			proxy.Mend()
			_, err = count()
			require.NoError(t, err)
		}
	})
}
