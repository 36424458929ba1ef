package upstream_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/throttle/upstream"
)

// A program with a plain http.Client keeps to the quota of its upstream, together
// with all other processes, by changing the client's Transport.
func ExampleTransport() {
	client, url, end := exampleAPI()
	defer end()
	policies, err := policy.Parse("policies.yaml", []byte(`
policies:
  github:
    limits:
      - {name: hourly, algorithm: fixed_window, rate: 5000/1h, per: installation}
    upstream: github
`))
	if err != nil {
		fmt.Println(err)
	}

	limiter, err := throttle.New(client, policies)
	if err != nil {
		fmt.Println(err)
	}
	github := &http.Client{Transport: &upstream.Transport{ // was: &http.Client{}
		Limiter: limiter, Policy: "github",
	}}

	ctx := upstream.WithAttributes(context.Background(), map[string]string{"installation": "42"})
	for range 4 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			fmt.Println(err)
		}
		response, err := github.Do(request)
		if err != nil {
			fmt.Println("not made, for the API has told that only 3 calls an hour are left")
			return // an asynq handler returns err, and is deferred until then
		}
		_ = response.Body.Close()
		fmt.Println(response.Status)
	}
	// Output:
	// 200 OK
	// 200 OK
	// 200 OK
	// not made, for the API has told that only 3 calls an hour are left
}

// exampleAPI is a Redis, and an API that allows less than the program was told.
func exampleAPI() (*redis.Client, string, func()) {
	server, err := throttletest.StartEmbedded(throttletest.EmbeddedConfig{})
	if err != nil {
		panic(err)
	}
	quota, err := throttletest.NewUpstream(throttletest.UpstreamConfig{
		Quota: &throttletest.Quota{Limit: 3, Window: time.Hour},
	})
	if err != nil {
		panic(err)
	}
	api := httptest.NewServer(quota)
	return server.Client(), api.URL, func() {
		api.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		_ = server.Close()
	}
}
