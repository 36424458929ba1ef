package worker

import (
	"fmt"

	"github.com/rampmeter/rampmeter/throttle"
)

// refusedTooOftenError is the error of a task that the upstream refused too often: no
// RateLimitedError any more, because it is a failure.
type refusedTooOftenError struct {
	limited *throttle.RateLimitedError
	times   int64
}

func (e refusedTooOftenError) Error() string {
	return fmt.Sprintf("refused %d times: %v", e.times, e.limited)
}
