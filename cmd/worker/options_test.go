package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/rampmeter/rampmeter/internal/program"
)

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  env
		args []string
		want []string
	}{
		"no policies file":     {nil, nil, []string{"-config FILE", "RAMPMETER_CONFIG"}},
		"unknown flag":         {nil, []string{"-confg", "x"}, []string{"-confg"}},
		"an argument":          {nil, []string{"-config", "x", "policies.yaml"}, []string{`"policies.yaml"`}},
		"two ways to Redis":    {nil, []string{"-config", "x", "-embedded", "-redis", "redis://h"}, []string{"-redis and -embedded"}},
		"both in environment":  {env{"RAMPMETER_EMBEDDED": "1", "RAMPMETER_REDIS": "redis://h"}, []string{"-config", "x"}, []string{"-redis and -embedded"}},
		"no Redis URI":         {nil, []string{"-config", "x", "-redis", "localhost:6379"}, []string{"-redis", "redis://:password@host:6379/0"}},
		"Redis without host":   {nil, []string{"-config", "x", "-redis", "redis:///0"}, []string{"names no host"}},
		"queue without weight": {nil, []string{"-config", "x", "-queues", "a"}, []string{`"a" is not NAME=WEIGHT`}},
		"queue of no weight":   {nil, []string{"-config", "x", "-queues", "a=0"}, []string{`queue "a" has the weight "0"`}},
		"queue twice":          {nil, []string{"-config", "x", "-queues", "a=1,a=2"}, []string{`"a" is named twice`}},
		"allow nobody":         {nil, []string{"-config", "x", "-allow-hosts", ","}, []string{"names no host"}},
		"allow a URL":          {nil, []string{"-config", "x", "-allow-hosts", "https://a.example"}, []string{"-allow-hosts", "more than a host"}},
		"log level":            {nil, []string{"-config", "x", "-log-level", "loud"}, []string{"-log-level", "loud"}},
		"bad environment":      {env{"RAMPMETER_CONCURRENCY": "many"}, []string{"-config", "x"}, []string{`RAMPMETER_CONCURRENCY="many"`}},
		"all at once": {nil, []string{"-concurrency", "0", "-shutdown-timeout", "0s", "-http-timeout", "-1s"},
			[]string{"-config FILE", "-concurrency is 0", "-shutdown-timeout is 0s", "-http-timeout is -1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := runToEnd(t, test.env, test.args...)
			assert.Equal(t, program.Usage, got.code)
			assert.Empty(t, got.stdout)
			for _, want := range append(test.want, "Run 'worker -h' for help.") {
				assert.Contains(t, got.stderr, want)
			}
		})
	}
}

func TestEnvironmentStandsInForFlags(t *testing.T) {
	t.Parallel()
	all := env{
		"RAMPMETER_CONFIG":           "env.yaml",
		"RAMPMETER_REDIS":            "redis://env:1/2",
		"RAMPMETER_LISTEN":           ":1",
		"RAMPMETER_CONCURRENCY":      "7",
		"RAMPMETER_QUEUES":           "a=3, b=1",
		"RAMPMETER_SHUTDOWN_TIMEOUT": "9s",
		"RAMPMETER_ALLOW_HOSTS":      "a.example, *.b.example",
		"RAMPMETER_HTTP_TIMEOUT":     "10s",
		"RAMPMETER_LOG_LEVEL":        "warn",
	}
	fromEnv, err := parseOptions(nil, all.get)
	require.NoError(t, err)
	assert.Equal(t, options{
		config: "env.yaml", redis: "redis://env:1/2", listen: ":1", concurrency: 7,
		queues: queueWeights{"a": 3, "b": 1}, shutdownTimeout: 9 * time.Second,
		allowHosts: []string{"a.example", "*.b.example"}, httpTimeout: 10 * time.Second, logLevel: zapcore.WarnLevel,
	}, fromEnv)

	flagsWin, err := parseOptions([]string{
		"-config", "flag.yaml", "-listen", ":2", "-concurrency", "8", "-queues", "c=1", "-shutdown-timeout", "1s",
		"-allow-hosts", "c.example", "-http-timeout", "2s", "-log-level", "debug", "-embedded",
	}, all.get)
	require.NoError(t, err)
	assert.Equal(t, options{
		config: "flag.yaml", embedded: true, listen: ":2", concurrency: 8,
		queues: queueWeights{"c": 1}, shutdownTimeout: time.Second,
		allowHosts: []string{"c.example"}, httpTimeout: 2 * time.Second, logLevel: zapcore.DebugLevel,
	}, flagsWin)

	redisWins, err := parseOptions([]string{"-config", "x", "-redis", "redis://flag"}, env{"RAMPMETER_EMBEDDED": "true"}.get)
	require.NoError(t, err)
	assert.False(t, redisWins.embedded)

	offMeansOff, err := parseOptions([]string{"-config", "x", "-embedded=false"}, all.get)
	require.NoError(t, err)
	assert.Equal(t, "redis://env:1/2", offMeansOff.redis)
}
