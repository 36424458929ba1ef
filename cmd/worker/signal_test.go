package main

import (
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker/httprequest"
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
		"SIGTERM ends in good order": {false, []syscall.Signal{syscall.SIGTERM}, program.OK},
		"so does SIGINT":             {false, []syscall.Signal{syscall.SIGINT}, program.OK},
		"a second one ends at once":  {true, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT}, program.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := throttletest.Embedded(t)
			worker := startProcess(t, "-config", policiesFile(t), "-redis", redis.URI(), "-shutdown-timeout", "10m")
			worker.log.await(1, "working")
			if test.busy {
				enqueue(t, redis.Addr(), httprequest.Payload{URL: upstream.URL})
				<-called
			}
			for i, signal := range test.signals {
				if i > 0 {
					worker.log.await(1, "Starting graceful shutdown")
				}
				require.NoError(t, worker.Process.Signal(signal))
			}
			assert.Equal(t, test.code, worker.ends())
		})
	}
}

// SIGHUP reads the policies file at once, even if it is as it was: a broken one is told
// of again, which watching it does not do. The worker goes on.
func TestHangupReadsThePoliciesFile(t *testing.T) {
	t.Parallel()
	redis := throttletest.Embedded(t)
	file := policiesFile(t)
	worker := startProcess(t, "-config", file, "-redis", redis.URI())
	worker.log.await(1, "working")
	replaceFile(t, file, "policies:\n  api: {limits: none}\n")
	for i := range 2 {
		told := worker.log.await(i+1, brokenFile)
		assert.Contains(t, told["error"], file+":2: policies.api.limits: ")
		require.NoError(t, worker.Process.Signal(syscall.SIGHUP))
	}
	require.NoError(t, worker.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, program.OK, worker.ends())
}
