package backlog

import (
	"fmt"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// scenario is a backlog and the limit that it meets.
type scenario struct {
	name        string
	about       string
	limit       limit
	lanes       []lane // in the order in which they are enqueued
	lastAttempt bool   // tasks have no retry
}

// lane is one tenant's tasks.
type lane struct {
	Name  string `json:"name"`
	Tasks int    `json:"tasks"`
}

// limit is what every contender keeps to.
type limit struct {
	Algorithm policy.Algorithm `json:"algorithm"`
	Count     int              `json:"count"`
	// Period is of a rate. Of a concurrency limit it is how long each call takes.
	Period time.Duration `json:"period"`
	// Burst is of a token bucket: how many may start at once.
	Burst int `json:"burst,omitempty"`
	// PerTenant counts each tenant by itself.
	PerTenant bool `json:"per_tenant,omitempty"`
}

// scenarios are all there are, at their full size.
func scenarios() []*scenario {
	return []*scenario{
		{
			name: "one-lane", about: "one queue of tasks before a token bucket",
			limit: limit{Algorithm: policy.TokenBucket, Count: 300, Period: time.Second, Burst: 30},
			lanes: []lane{{"big", 9000}},
		},
		{
			name: "tenants", about: "nine small tenants enqueued behind a big one, before one token bucket",
			limit: limit{Algorithm: policy.TokenBucket, Count: 200, Period: time.Second, Burst: 20},
			lanes: append([]lane{{"big", 6000}}, tenants(9, 20)...),
		},
		{
			name: "per-tenant", about: "tenants enqueued one after the other, each with a sliding log of its own",
			limit: limit{Algorithm: policy.SlidingLog, Count: 5, Period: time.Second, PerTenant: true},
			lanes: tenants(50, 40),
		},
		{
			name: "window", about: "one queue of tasks before a fixed window",
			limit: limit{Algorithm: policy.FixedWindow, Count: 200, Period: 5 * time.Second},
			lanes: []lane{{"big", 900}},
		},
		{
			name: "last-attempt", about: "tasks without a retry left, before a token bucket",
			limit: limit{Algorithm: policy.TokenBucket, Count: 20, Period: time.Second, Burst: 2},
			lanes: []lane{{"big", 400}}, lastAttempt: true,
		},
		{
			name: "slots", about: "one queue of tasks before a concurrency limit",
			limit: limit{Algorithm: policy.Concurrency, Count: 10, Period: 200 * time.Millisecond},
			lanes: []lane{{"big", 3000}},
		},
		{
			name: "tenant-slots", about: "tenants enqueued one after the other, each with slots of its own",
			limit: limit{Algorithm: policy.Concurrency, Count: 2, Period: 200 * time.Millisecond, PerTenant: true},
			lanes: tenants(8, 200),
		},
	}
}

func tenants(n, tasks int) []lane {
	lanes := make([]lane, n)
	for i := range lanes {
		lanes[i] = lane{fmt.Sprintf("tenant-%02d", i+1), tasks}
	}
	return lanes
}

// resize gives the scenario about so many tasks. Small tenants behind a big one
// stay as they are; where all are alike, all change.
func (s *scenario) resize(tasks int) {
	if s.hasSmall() {
		s.lanes[0].Tasks = max(1, tasks-(s.tasks()-s.lanes[0].Tasks))
		return
	}
	each := max(1, tasks/len(s.lanes))
	for i := range s.lanes {
		s.lanes[i].Tasks = each
	}
}

// hasSmall reports whether small tenants stand behind a big one.
func (s *scenario) hasSmall() bool {
	return len(s.lanes) > 1 && s.lanes[0].Tasks > s.lanes[1].Tasks
}

func (s *scenario) tasks() int { return tasksOf(s.lanes) }

func tasksOf(lanes []lane) int {
	sum := 0
	for _, lane := range lanes {
		sum += lane.Tasks
	}
	return sum
}

// ideal is how long the limit makes the backlog last at least, from the first
// start to the last.
func (s *scenario) ideal() time.Duration {
	tasks := s.tasks()
	if s.limit.PerTenant {
		tasks = s.lanes[0].Tasks // all are alike
	}
	l := s.limit
	if l.Algorithm == policy.TokenBucket {
		return time.Duration(max(0, tasks-l.Burst)) * l.Period / time.Duration(l.Count)
	}
	return time.Duration((tasks-1)/l.Count) * l.Period
}

// enough is how many tasks the limit holds up for a period at least.
func (s *scenario) enough() int {
	if s.limit.PerTenant {
		return 2 * s.limit.Count * len(s.lanes)
	}
	return 2 * s.limit.Count
}

// takes is how long the API is to take for a call; empty for no time.
func (s *scenario) takes() string {
	if s.limit.Algorithm != policy.Concurrency {
		return ""
	}
	return s.limit.Period.String()
}

// rate is the limit's in the short way that people write it.
func (l limit) rate() string {
	text := strings.Replace(fmt.Sprintf("%d per %s", l.Count, l.Period), "per 1s", "per second", 1)
	if l.Algorithm == policy.Concurrency {
		text = fmt.Sprintf("%d at once of %s each", l.Count, l.Period)
	}
	if l.Burst > 0 {
		text += fmt.Sprintf(", %d at once", l.Burst)
	}
	if l.PerTenant {
		text += " and tenant"
	}
	return text
}

// String is the limit as a line of a policies file.
func (l limit) String() string {
	text := fmt.Sprintf("{name: calls, algorithm: %s, rate: %s", l.Algorithm, policy.Rate{Count: int64(l.Count), Period: l.Period})
	if l.Algorithm == policy.Concurrency {
		text = fmt.Sprintf("{name: calls, algorithm: %s, slots: %d", l.Algorithm, l.Count)
	}
	if l.Burst > 0 {
		text += fmt.Sprintf(", burst: %d", l.Burst)
	}
	if l.PerTenant {
		text += ", per: " + tenantAttribute
	}
	return text + "}"
}
