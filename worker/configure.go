package worker

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rampmeter/rampmeter/internal/asynqfacts"
	"github.com/rampmeter/rampmeter/throttle"
)

// Configure returns config with what asynq must know of deferred tasks: when they
// return, that they did not fail, and that the program's ErrorHandler has nothing
// to hear of them. What config says of other errors stays in force.
//
// A TaskCheckInterval that is not set becomes 200ms: a task that is woken is found
// that late by a server that had nothing to do, so it is woken that much earlier.
func (m *Middleware) Configure(config asynq.Config) asynq.Config {
	if config.TaskCheckInterval == 0 {
		config.TaskCheckInterval = taskCheckInterval
	}
	m.observe(config)
	delay := config.RetryDelayFunc
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	config.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if throttled := (*throttle.ThrottledError)(nil); errors.As(err, &throttled) {
			return asynqfacts.ToWholeSecond(time.Now(), throttled.RetryAfter)
		}
		return delay(n, err, task)
	}

	isFailure := config.IsFailure
	if isFailure == nil {
		isFailure = func(err error) bool { return err != nil }
	}
	config.IsFailure = func(err error) bool { return !isThrottled(err) && isFailure(err) }

	if handler := config.ErrorHandler; handler != nil {
		config.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
			if !isThrottled(err) && !isDropped(err) {
				handler.HandleError(ctx, task, err)
			}
		})
	}
	return config
}

func isThrottled(err error) bool {
	throttled := (*throttle.ThrottledError)(nil)
	return errors.As(err, &throttled)
}
