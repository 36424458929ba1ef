package throttletest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// redisPath is the redis-server for tests that start one in a way of their own.
func redisPath(t *testing.T) string {
	t.Helper()
	path, err := findRedis("", os.Getenv)
	if err != nil {
		giveUp(t, err, os.Getenv)
	}
	return path
}

// takePort listens on a port until the test ends.
func takePort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l.Addr().(*net.TCPAddr).Port
}

func TestRedisKeepsNothingUnlessToldTo(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{"no": nil, "yes": {"--appendonly", "yes"}} {
		srv := Redis(t, args...)
		got, err := srv.Client().ConfigGet(t.Context(), "*").Result()
		require.NoError(t, err)
		assert.Equal(t, want, got["appendonly"])
		assert.Empty(t, got["save"])
		require.DirExists(t, got["dir"])
		require.NoError(t, srv.Close())
		assert.NoDirExists(t, got["dir"], "it leaves no folder behind")
	}
}

func TestStartRedisTriesAnotherPortWhenOneIsTaken(t *testing.T) {
	t.Parallel()
	path := redisPath(t)
	taken := takePort(t)

	picks := 0
	srv, err := startRedis(t.Context(), path, nil, func(ctx context.Context) (int, error) {
		if picks++; picks <= 2 {
			return taken, nil
		}
		return freePort(ctx)
	})
	require.NoError(t, err)
	closeAfter(t, srv)
	assert.Equal(t, 3, picks)
	require.NoError(t, srv.Client().Ping(t.Context()).Err())
}

func TestStartRedisGivesUpWhenEveryPortIsTaken(t *testing.T) {
	t.Parallel()
	path := redisPath(t)
	taken := takePort(t)
	_, err := startRedis(t.Context(), path, nil, func(context.Context) (int, error) { return taken, nil })
	require.ErrorIs(t, err, errPortTaken)
}

func TestStartRedisTellsWhyTheServerDidNotStart(t *testing.T) {
	t.Parallel()
	_, err := StartRedis(t.Context(), RedisConfig{Path: redisPath(t), Args: []string{"--no-such-setting", "1"}})
	require.ErrorContains(t, err, "no-such-setting", "the server's own words should be in the message")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
}

func TestStartRedisEndsWithItsContext(t *testing.T) {
	t.Parallel()
	path := redisPath(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// At this level the server never says that it is ready.
	_, err := StartRedis(ctx, RedisConfig{Path: path, Args: []string{"--loglevel", "warning"}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestStartRedisManyAtOnce(t *testing.T) {
	t.Parallel()
	path := redisPath(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	addrs := map[string]bool{}
	for range 8 {
		wg.Go(func() {
			srv, err := StartRedis(t.Context(), RedisConfig{Path: path})
			if assert.NoError(t, err) {
				mu.Lock()
				addrs[srv.Addr()] = true
				mu.Unlock()
				closeAfter(t, srv)
			}
		})
	}
	wg.Wait()
	assert.Len(t, addrs, 8)
}

func TestFindRedis(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "redis-server")
	require.NoError(t, os.WriteFile(program, nil, 0o700))
	env := func(path string) func(string) string {
		return func(name string) string {
			assert.Equal(t, "RAMPMETER_REDIS_SERVER", name)
			return path
		}
	}

	t.Setenv("PATH", folder)
	got, err := findRedis("", env(""))
	require.NoError(t, err)
	assert.Equal(t, program, got)

	t.Setenv("PATH", "")
	_, err = findRedis("", env(""))
	require.ErrorIs(t, err, ErrNoRedisServer)
	require.ErrorContains(t, err, "install")

	got, err = findRedis("", env(program))
	require.NoError(t, err)
	assert.Equal(t, program, got)

	missing := filepath.Join(folder, "missing")
	got, err = findRedis(program, env(missing))
	require.NoError(t, err, "the path that is asked for in code wins")
	assert.Equal(t, program, got)

	_, err = findRedis("", env(missing))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, ErrNoRedisServer, "a wrong path is a mistake, not a reason to skip")
	require.ErrorContains(t, err, missing)

	t.Chdir(folder)
	got, err = findRedis("./redis-server", env(""))
	require.NoError(t, err)
	assert.True(t, filepath.IsAbs(got), "%s is run in another folder", got)
}
