package throttletest

import (
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServerIsReachedByEveryAddressItTells(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		require.NoError(t, srv.Client().Set(t.Context(), "k", "v", 0).Err())

		fromURI, err := redis.ParseURL(srv.URI())
		require.NoError(t, err)
		for name, opt := range map[string]*redis.Options{
			"URI":     fromURI,
			"Options": srv.Options(),
			"Addr":    {Addr: srv.Addr()},
		} {
			client := redis.NewClient(opt)
			got, err := client.Get(t.Context(), "k").Result()
			require.NoError(t, err, name)
			assert.Equal(t, "v", got, name)
			require.NoError(t, client.Close())
		}
		host, _, err := net.SplitHostPort(srv.Addr())
		require.NoError(t, err)
		assert.Equal(t, "127.0.0.1", host, "only this machine should reach it")
	})
}

func TestServerStartsEmptyAndAlone(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		size, err := srv.Client().DBSize(t.Context()).Result()
		require.NoError(t, err)
		assert.Zero(t, size, "another test's keys are here")
		require.NoError(t, srv.Client().Set(t.Context(), UniqueName(t), "v", 0).Err())
	})
}

func TestServerIsGoneAfterClose(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		require.NoError(t, srv.Client().Set(t.Context(), t.Name(), "here", 0).Err())
		require.NoError(t, srv.Client().Close(), "somebody tidy")
		require.NoError(t, srv.Close())
		client := redis.NewClient(srv.Options())
		defer client.Close()
		// Another test may have a server at that port by now.
		require.Error(t, client.Get(t.Context(), t.Name()).Err(), "it still listens")
		require.NoError(t, srv.Close(), "closing again does nothing")
	})
}

func TestServerExpiresKeysByItself(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		const life = 50 * time.Millisecond
		set := time.Now()
		require.NoError(t, srv.Client().Set(t.Context(), "k", "v", life).Err())
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			n, err := srv.Client().Exists(t.Context(), "k").Result()
			assert.NoError(c, err)
			assert.Zero(c, n)
		}, patience, time.Millisecond)
		// Redis counts in milliseconds of its own clock, hence one of leeway.
		assert.GreaterOrEqual(t, time.Since(set), life-time.Millisecond, "expired too early")
	})
}

func TestServerTellsTheTimeInScripts(t *testing.T) {
	t.Parallel()
	EachServer(t, func(t *testing.T, srv *Server) {
		before := time.Now().Truncate(time.Microsecond)
		now := timeInScript(t, srv)
		assert.False(t, now.Before(before), "%s is before %s", now, before)
		assert.False(t, now.After(time.Now()), "%s has not come yet", now)
	})
}

// timeInScript is what a Lua script on the server sees as the time.
func timeInScript(t *testing.T, srv *Server) time.Time {
	t.Helper()
	const script = `local t = redis.call('TIME'); return {tonumber(t[1]), tonumber(t[2])}`
	got, err := srv.Client().Eval(t.Context(), script, nil).Int64Slice()
	require.NoError(t, err)
	return time.Unix(got[0], got[1]*int64(time.Microsecond))
}
