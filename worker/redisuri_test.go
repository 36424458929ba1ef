package worker_test

import (
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/worker"
)

func TestParseRedisURI(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]asynq.RedisConnOpt{
		"redis://h:1/2":                     asynq.RedisClientOpt{Addr: "h:1", DB: 2},
		"redis://h":                         asynq.RedisClientOpt{Addr: "h:6379"},
		"redis://[::1]":                     asynq.RedisClientOpt{Addr: "[::1]:6379"},
		"redis://me:secret@h":               asynq.RedisClientOpt{Addr: "h:6379", Username: "me", Password: "secret"},
		"redis-socket:///run/r.sock?db=3":   asynq.RedisClientOpt{Network: "unix", Addr: "/run/r.sock", DB: 3},
		"redis-sentinel://a:1,b:2?master=m": asynq.RedisFailoverClientOpt{MasterName: "m", SentinelAddrs: []string{"a:1", "b:2"}},
	} {
		got, err := worker.ParseRedisURI(uri)
		require.NoError(t, err, uri)
		assert.Equal(t, want, got, uri)
	}
	_, err := worker.ParseRedisURI("redis://:secret@h:port")
	require.ErrorContains(t, err, "write it like redis://")
	assert.NotContains(t, err.Error(), "secret")
	_, err = worker.ParseRedisURI("redis://:6379")
	require.ErrorContains(t, err, "names no host")
}
