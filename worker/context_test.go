package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// A handler finds the reservation that its task runs under, and can tell what the
// task really cost.
func TestHandlerAdjustsItsReservation(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		limits := []policy.Limit{{
			Name: "tokens", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 100, Period: 24 * time.Hour}, Cost: "tokens",
		}}
		r := newTestServer(t, server, policy.Policy{Limits: limits})
		slots := make(chan time.Time, 1)
		stop := r.serve(func(ctx context.Context, _ *asynq.Task) error {
			reservation, ok := throttle.FromContext(ctx)
			if assert.True(t, ok) {
				assert.NoError(t, reservation.Adjust(ctx, map[string]string{"tokens": "30"}))
				slots <- reservation.At
			}
			return nil
		})
		began := time.Now().Truncate(time.Microsecond)
		r.enqueueWith(map[string]string{"tokens": "10"})
		assert.WithinRange(t, <-slots, began, time.Now())
		stop()
		d, err := r.limiter.Peek(t.Context(), throttle.Request{Policy: "api", Attributes: map[string]string{"tokens": "1"}})
		require.NoError(t, err)
		assert.EqualValues(t, 100-30, d.Limits[0].Remaining)
	})
}

// Tasks of a type that no route names are not our business.
func TestUnroutedTasksPassThrough(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: per(time.Hour)})
	all := newJournal()
	r.serve(func(ctx context.Context, task *asynq.Task) error {
		_, ok := throttle.FromContext(ctx)
		assert.False(t, ok)
		return all.ProcessTask(ctx, task)
	})
	for range 5 {
		r.add(asynq.NewTask("other", nil))
	}
	all.wait(t, 5)
}
