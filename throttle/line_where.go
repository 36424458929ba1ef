package throttle

import (
	"context"
	"time"
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
	now, err := l.Peek(ctx, request)
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
	expected := now.At
	if !spot.Woken {
		shared, slowest := calls.times(claim)
		ahead := max(0, min(spot.Tasks, spot.Position*max(1, spot.Rows))-1)
		expected = expected.Add(max(time.Duration(ahead)*shared, time.Duration(spot.Position-1)*slowest))
	}
	place := Place{Lane: calls.line.Lane(request.Attributes), Position: spot.Position, Since: since, Expected: expected}
	return &Standing{Place: place, HeldBy: now.HeldBy, Woken: spot.Woken, Asked: spot.Asked}, nil
}

// times are how long the limits take to make up for a claim's costs: the slowest of
// those that all rows share, and the slowest of all. The scripts reckon alike.
func (c *policyCalls) times(of *claim) (shared, slowest time.Duration) {
	for i := range c.policy.Limits {
		script := scriptLimit(c.policy, &c.policy.Limits[i])
		took := time.Duration(float64(of.costs[i]) * float64(script.PeriodUS) / float64(script.Count) * float64(time.Microsecond))
		slowest = max(slowest, took)
		if c.policy.Limits[i].Per == "" {
			shared = max(shared, took)
		}
	}
	return shared, slowest
}
