package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// What a limit keeps for urgent tasks is there for them when all others have to wait;
// being urgent is a header.
func TestUrgentTasksUseTheHeadroom(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limit := policy.Limit{
			Name: "daily", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: 10, Period: 24 * time.Hour},
			Headroom: policy.Headroom{Percent: 30},
		}
		r := newTestServer(t, server, policy.Policy{Limits: []policy.Limit{limit}, MaxWait: -1})
		ran := make(chan string, 20)
		r.serve(func(_ context.Context, task *asynq.Task) error {
			ran <- task.Headers()["priority"]
			return nil
		})
		r.enqueue(12)
		for range 7 {
			assert.Empty(t, <-ran)
		}
		r.eventually("five parked", func() bool { return r.queue().Retry == 5 })
		for range 4 {
			r.enqueueWith(map[string]string{"priority": "high"})
		}
		for range 3 {
			assert.Equal(t, "high", <-ran)
		}
		r.eventually("the fourth parked", func() bool { return r.queue().Retry == 6 })
		assert.Empty(t, ran)
	})
}
