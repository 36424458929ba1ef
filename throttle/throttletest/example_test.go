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

// A counter that counts what it denies, too, locks out who keeps asking for much.
func ExampleJudge() {
	clock := throttletest.NewClock(time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC))
	srv, err := throttletest.StartEmbedded(throttletest.EmbeddedConfig{Clock: clock})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()

	counter := func(ctx context.Context, now time.Time, key string, cost int64) (throttletest.Answer, error) {
		clock.Set(now)
		if cost > 5 {
			return throttletest.Answer{Never: true}, nil
		}
		count, err := srv.Client().IncrBy(ctx, key, cost).Result()
		if count == cost && err == nil {
			err = srv.Client().Expire(ctx, key, time.Minute).Err()
		}
		return throttletest.Answer{Started: count <= 5}, err
	}
	report := throttletest.Judge(context.Background(), counter, throttletest.OpenedWindowModel(5, time.Minute),
		throttletest.ConformOptions{Cannot: map[throttletest.Promise]string{
			throttletest.PatienceIsRewarded: "it does not tell how long to wait",
		}})
	for _, finding := range report {
		fmt.Println(finding.Verdict, "-", finding.Promise)
	}
	// Output:
	// held - the impossible is refused as never
	// held - never over
	// held - all tokens are usable
	// broken - denials take nothing
	// not judged - patience is rewarded
	// held - costs count
	// held - keys keep apart
	// held - kept while it matters
	// held - a clock set back does no harm
}
