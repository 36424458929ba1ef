package throttletest_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// An embedded server is a Redis like any other to its clients.
func ExampleStartEmbedded() {
	srv, err := throttletest.StartEmbedded(throttletest.EmbeddedConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()

	fmt.Println(srv.Client().Ping(context.Background()).Val())
	// Output: PONG
}

// The upstream tells what came, and how it looked by the upstream's own clock.
func ExampleUpstream() {
	clock := throttletest.NewClock(time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC))
	api, err := throttletest.NewUpstream(throttletest.UpstreamConfig{
		Quota: &throttletest.Quota{Limit: 2, Window: time.Minute},
		Now:   clock.Now,
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil))
		clock.Advance(time.Second)
	}
	fmt.Println("accepted", api.Accepted(), "over", api.Over())
	fmt.Println("most in a second", throttletest.MaxInAnyInterval(api.Arrivals(), time.Second))
	// Output:
	// accepted 2 over 1
	// most in a second 1
}
