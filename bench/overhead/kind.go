package overhead

import (
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

// kind is one kind of tasks, by their type.
type kind string

// plain are the tasks without a policy, which always take part.
const plain kind = "no-policy"

// kinds are all there are, in the order of their turns.
func kinds() []kind { return []kind{plain, "token_bucket", "lane"} }

// policiesFile is the worker's, with the policies of all kinds but the plain one.
const policiesFile = `
policies:
  token_bucket:
    limits:
      - {name: calls, algorithm: token_bucket, rate: 1000000/s}
  lane:
    limits:
      - {name: calls, algorithm: token_bucket, rate: 1000000/s, per: tenant}
    lane: tenant
routes:
  - {task: token_bucket, policy: token_bucket}
  - {task: lane, policy: lane}
`

const tenants = 10

// task is the kind's task of this number.
func (k kind) task(number int) *asynq.Task {
	attributes := map[string]string{"tenant": fmt.Sprintf("tenant-%d", number%tenants)}
	return asynq.NewTaskWithHeaders(string(k), nil, attributes, asynq.Timeout(time.Hour))
}
