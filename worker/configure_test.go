package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

func TestConfigureKeepsWhatTheProgramSays(t *testing.T) {
	t.Parallel()
	var heard []error
	config := (&Middleware{}).Configure(asynq.Config{
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
		IsFailure:      func(err error) bool { return err.Error() != "harmless" },
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) {
			heard = append(heard, err)
		}),
	})
	ours := fmt.Errorf("wrapped: %w", &throttle.ThrottledError{RetryAfter: 90 * time.Second})
	theirs, harmless := errors.New("broken"), errors.New("harmless")

	assert.InDelta(t, 90*time.Second, config.RetryDelayFunc(0, ours, nil), float64(time.Second))
	assert.Equal(t, time.Hour, config.RetryDelayFunc(0, theirs, nil))
	assert.False(t, config.IsFailure(ours))
	assert.True(t, config.IsFailure(theirs))
	assert.False(t, config.IsFailure(harmless))
	for _, err := range []error{ours, theirs, harmless} {
		config.ErrorHandler.HandleError(t.Context(), nil, err)
	}
	assert.Equal(t, []error{theirs, harmless}, heard)

	config = (&Middleware{}).Configure(asynq.Config{})
	assert.True(t, config.IsFailure(theirs))
	assert.Positive(t, config.RetryDelayFunc(1, theirs, nil))
	assert.Nil(t, config.ErrorHandler)
}

// Tasks that wait leave workers to others: half of them where they may hide others, a
// quarter where they were woken to stand by.
func TestCrowdLeavesWorkersToOthers(t *testing.T) {
	t.Parallel()
	m := &Middleware{}
	m.Configure(asynq.Config{Concurrency: 6})
	a := &attempt{Middleware: m, policy: &policy.Policy{Lane: "tenant", MaxWait: time.Hour}}
	for range 3 {
		assert.Equal(t, time.Hour, a.patience())
		defer m.crowd.enter()()
	}
	assert.Zero(t, a.patience())
	defer m.crowd.work()()
	defer m.crowd.work()()
	assert.Equal(t, 3, m.crowd.spare())
}
