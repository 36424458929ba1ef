package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// quota is what the API allows: 40 calls a second on average, 30 at once.
// GitHub's 5000 an hour would be long to watch.
var quota = throttletest.Quota{Limit: 200, Window: 5 * time.Second, Burst: 30}

// api is somebody else's API: it enforces the quota by its own clock and answers
// with GitHub's headers.
type api struct {
	*throttletest.Upstream
	url  string
	stop func()
}

// listenAPI serves an API on address until its stop is called.
func listenAPI(ctx context.Context, address string) (*api, error) {
	upstream, err := throttletest.NewUpstream(throttletest.UpstreamConfig{Quota: &quota, Keep: 100_000})
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("starting the API: %w", err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: upstream, ReadHeaderTimeout: 5 * time.Second}}
	server.Start()
	return &api{Upstream: upstream, url: server.URL, stop: server.Close}, nil
}

// serveAPI runs nothing but the API, until ctx ends.
func serveAPI(ctx context.Context, address string, stderr io.Writer) error {
	api, err := listenAPI(ctx, address)
	if err != nil {
		return err
	}
	defer api.stop()
	fmt.Fprintf(stderr, "serving an API with %d calls per %s on %s\n", quota.Limit, quota.Window, api.url)
	<-ctx.Done()
	fmt.Fprintf(stderr, "%d calls, %d of them over the quota\n", api.Count(), api.Over())
	return nil
}
