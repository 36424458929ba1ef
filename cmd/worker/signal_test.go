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
			cmd := command(t, "-config", policiesFile(t), "-redis", redis.URI(), "-shutdown-timeout", "10m")
			stderr, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := newLogLines(stderr)
			lines.await(t, "working")
			if test.busy {
				(&running{redis: redis.Addr()}).enqueue(t, httprequest.Payload{URL: upstream.URL})
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
