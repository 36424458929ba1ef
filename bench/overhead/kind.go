package overhead

import (
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

// kind is one kind of tasks. Its name is the tasks' type, too.
type kind struct {
	name string
	// limit and lane are its policy's in the policies file; empty for no policy.
	limit, lane string
}

// plain are the tasks without a policy, which always take part.
var plain = kind{name: "no-policy"}

// kinds are all there are, in the order of their turns.
func kinds() []kind {
	return []kind{
		plain,
		{name: "token_bucket", limit: "{name: calls, algorithm: token_bucket, rate: 1000000/s}"},
		{
			name: "lane", lane: tenantAttribute,
			limit: "{name: calls, algorithm: token_bucket, rate: 1000000/s, per: " + tenantAttribute + "}",
		},
	}
}

// policiesFile is the worker's, with the policies of all kinds.
func policiesFile() string {
	policies, routes := "policies:\n", "routes:\n"
	for _, k := range kinds() {
		if k.limit == "" {
			continue
		}
		policies += fmt.Sprintf("  %s:\n    limits:\n      - %s\n", k.name, k.limit)
		if k.lane != "" {
			policies += "    lane: " + k.lane + "\n"
		}
		routes += fmt.Sprintf("  - {task: %s, policy: %[1]s}\n", k.name)
	}
	return policies + routes
}

const (
	tenantAttribute = "tenant"
	tenants         = 10
)

// task is the kind's task of this number.
func (k kind) task(number int) *asynq.Task {
	attributes := map[string]string{tenantAttribute: fmt.Sprintf("tenant-%d", number%tenants)}
	return asynq.NewTaskWithHeaders(k.name, nil, attributes, asynq.Timeout(time.Hour))
}
