package worker

import (
	"fmt"

	"github.com/rampmeter/rampmeter/throttle"
)

// notRateLimited is the error of a task that the upstream refused too often: no
// RateLimitedError any more, because it is a failure.
type notRateLimited struct {
	limited *throttle.RateLimitedError
	times   int64
}

func (e notRateLimited) Error() string {
	return fmt.Sprintf("refused %d times: %v", e.times, e.limited)
}
