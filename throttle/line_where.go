package throttle

import (
	"context"
	"time"

	"github.com/rampmeter/rampmeter/internal/line"
)

// Place is where a task stands in the waiting line of its policy.
type Place struct {
	// Lane is the value of the policy's Lane attribute, or empty.
	Lane string
	// Position counts from 1 among the tasks of the lane that are of the same queue and
	// counted by the same keys.
	Position int64
	// Since is when the task came into line.
	Since time.Time
	// Expected is when the task is to start, reckoned as if nobody else came and
	// every task in line ran.
	Expected time.Time
	// StandsBy tells that the task is to stay where it is, and is in no line meanwhile. Its
	// worker is told when a slot of the concurrency limit that holds it is handed to it,
	// which is kept for it for a second: see [Reservation.Accept]. It is to ask again two
	// seconds after it asked if nothing is told, and when it does not stay any more; each
	// time with the request's Since.
	StandsBy bool
}

// Standing is what is known of a task in a waiting line.
type Standing struct {
	Place
	// HeldBy is the limit that would hold the task back if it were alone, or
	// [HeldByFreeze]; empty if its tokens are there.
	HeldBy string
	// Woken tells that its turn has come: it is on its way to a worker.
	Woken bool
	// Asked is how often it has asked for its start.
	Asked int64
}

// urgentLead is how much before it did an urgent task is taken to have come.
const urgentLead = 24 * time.Hour

// Where tells where a task stands in the waiting line of its policy, or nil if it is
// not in line. The request names it as the one did that joined: by policy, TaskID and
// Attributes. It changes nothing. Its errors are Reserve's.
func (l *Limiter) Where(ctx context.Context, request Request) (*Standing, error) {
	calls, claim, err := l.claim(request)
	if err != nil {
		return nil, err
	}
	spot, err := calls.line.Find(ctx, claim.inLine())
	if spot == nil || err != nil {
		return nil, err
	}
	since := spot.Since
	if claim.urgent {
		since = since.Add(urgentLead) // it is taken to have come that much before
	}
	now, err := l.lookAt(ctx, request, spot)
	if err != nil {
		return nil, err
	}
	at := Place{Lane: calls.line.Lane(request.Attributes), Position: 1, Since: since, Expected: now.At}
	if now.Place != nil {
		at = *now.Place
	}
	return &Standing{Place: at, HeldBy: now.HeldBy, Woken: spot.Woken, Asked: spot.Asked}, nil
}

// lookAt tells when a task that was woken may start, or where one waits and when it is
// expected to start.
func (l *Limiter) lookAt(ctx context.Context, request Request, spot *line.Spot) (Decision, error) {
	if spot.Woken {
		return l.Peek(ctx, request)
	}
	return l.park(ctx, request, "where", spot.Since.UnixMicro(), func(c *policyCalls) *flight { return &c.looks })
}
