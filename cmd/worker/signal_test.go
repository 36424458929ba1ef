package main

import (
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/httprequest"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestSignals(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		called <- struct{}{}
		<-r.Context().Done() // a call that outlives every patience
	}))
	t.Cleanup(upstream.Close)
	for name, test := range map[string]struct {
		busy    bool
		signals []syscall.Signal
		code    int
	}{
		"SIGTERM ends in good order": {false, []syscall.Signal{syscall.SIGTERM}, exitOK},
		"so does SIGINT":             {false, []syscall.Signal{syscall.SIGINT}, exitOK},
		"a second one ends at once":  {true, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := throttletest.Embedded(t)
			cmd, lines := commandThatLogs(t, "-config", policiesFile(t), "-redis", redis.URI(), "-shutdown-timeout", "10m")
			if test.busy {
				enqueue(t, redis.Addr(), httprequest.Payload{URL: upstream.URL})
				<-called
			}
			for i, signal := range test.signals {
				if i > 0 {
					lines.await(t, "Starting graceful shutdown")
				}
				require.NoError(t, cmd.Process.Signal(signal))
			}
			rest := lines.drain()()
			_ = cmd.Wait() // its exit code tells
			assert.Equal(t, test.code, cmd.ProcessState.ExitCode(), rest)
		})
	}
}

// SIGHUP reads the policies file at once, even if it is as it was: a broken one is told
// of again, which watching it does not do. The worker goes on.
func TestHangupReadsThePoliciesFile(t *testing.T) {
	t.Parallel()
	redis := throttletest.Embedded(t)
	file := policiesFile(t)
	cmd, lines := commandThatLogs(t, "-config", file, "-redis", redis.URI())
	replaceFile(t, file, "policies:\n  api: {limits: none}\n")
	const broken = "the policies file can not be used, the policies that are in force stay; mend it, it is looked at"
	for range 2 {
		told := lines.await(t, broken)
		assert.Contains(t, told["error"], file+":2: policies.api.limits: ")
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	lines.drain()()
	require.NoError(t, cmd.Wait())
}
