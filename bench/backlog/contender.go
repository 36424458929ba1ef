package backlog

import (
	"fmt"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// contender is one way to keep a backlog to its limit.
type contender struct {
	name string
	// kind is what its worker processes do.
	kind kind
	// intervals are asynq's, where they are not its defaults.
	intervals intervals
	// spread is up to how much later than it could be a task comes back.
	spread time.Duration
	// policy is what Rampmeter's policies file says beside the limit.
	policy string
	// atOnce has its producer know the policies, too.
	atOnce bool
}

type kind string

const (
	unlimited  kind = "unlimited"
	retryAfter kind = "retry-after"
	rampmeter  kind = "rampmeter"
	bullMQ     kind = "bullmq"
)

// intervals are how often asynq looks for tasks; zero is asynq's default.
type intervals struct {
	// DelayedTaskCheck is for tasks that are due again (default 5 s), TaskCheck for
	// tasks of an empty queue (1 s).
	DelayedTaskCheck, TaskCheck time.Duration
}

// contenders are all there are, in the order of the tables.
func contenders() []*contender {
	return []*contender{
		{name: "asynq, no limit", kind: unlimited},
		{name: "retry-after", kind: retryAfter, spread: 10 * time.Second},
		{
			name: "retry-after, tuned", kind: retryAfter, spread: time.Second,
			intervals: intervals{200 * time.Millisecond, 100 * time.Millisecond},
		},
		{name: "BullMQ", kind: bullMQ},
		{name: "rampmeter, waiting", kind: rampmeter, policy: "    max_wait: 5s\n"},
		{name: "rampmeter, parked", kind: rampmeter, policy: "    lane: " + tenantAttribute + "\n"},
		{name: "rampmeter, parked at once", kind: rampmeter, policy: "    lane: " + tenantAttribute + "\n", atOnce: true},
	}
}

// parks reports whether it puts tasks off instead of holding them.
func (c *contender) parks() bool {
	return c.kind == retryAfter || c.kind == rampmeter && strings.Contains(c.policy, "lane:")
}

// unfit tells why the contender can not take part in a scenario, or nothing.
func (c *contender) unfit(s *scenario) string {
	switch {
	case c.kind == bullMQ && s.limit.PerTenant:
		return "a limit for each tenant is not in its free edition"
	case c.kind == bullMQ && s.limit.Algorithm == policy.Concurrency:
		return "its limit of jobs at once needs no limiter"
	case c.kind == bullMQ && s.lastAttempt:
		return "its limiter holds jobs back before they are attempted"
	case c.atOnce && s.lastAttempt:
		return "its producer puts tasks into line before they are attempted"
	}
	return ""
}

// policiesFile is Rampmeter's for this scenario.
func (c *contender) policiesFile(l limit) string {
	return fmt.Sprintf("policies:\n  api:\n    limits:\n      - %s\n%sroutes:\n  - {task: %s, policy: api}\n", l, c.policy, taskType)
}
