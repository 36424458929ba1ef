package throttle

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Place is where a task stands in the waiting line of its policy.
type Place struct {
	// Lane is the value of the policy's Lane attribute, or empty.
	Lane string
	// Position counts from 1 among the tasks of the lane that are counted by the
	// same keys.
	Position int64
	// Since is when the task came into line.
	Since time.Time
	// Expected is when the task is to start, reckoned as if nobody else came and
	// every task in line ran.
	Expected time.Time
	// StandsBy tells that the task is to stay where it is. It is called when a slot of
	// the concurrency limit that holds it is free, which is kept for it half a second:
	// see [Listener]. It is to ask again then, and after StandByTime if it is not called;
	// for after three seconds it is taken for lost.
	StandsBy bool
}

// StandByTime is how long after it asked a task that stands by is to ask again.
const StandByTime = 2 * time.Second

const (
	// idleSlot: a slot this near is taken by whoever asks, for those who have a
	// better claim to it have not asked in time.
	idleSlot = 20 * time.Millisecond
	// wokenWait is how far ahead the slot of a woken task may lie before it goes
	// back into line.
	wokenWait = 2 * time.Second
)

// lineOf says how a policy's tasks stand in line. Lanes and rows are explained in
// lua/fragments/line.lua.
type lineOf struct {
	policy *policy.Policy
	// key is that of the line in Redis.
	key string
	// attributes are those whose values make a row, the lane's first.
	attributes []string
	// head is what every script on the line is told.
	head []any
}

func newLineOf(policy *policy.Policy) *lineOf {
	l := &lineOf{policy: policy, attributes: rowAttributes(policy)}
	hasLane := policy.Lane != ""
	oneRow := len(l.attributes) == 0 || hasLane && len(l.attributes) == 1
	l.head = []any{hasLane, oneRow}
	l.key = keyPrefix(policy.Name) + "/line" + l.shape()
	return l
}

// shape is what must be the same for tasks to stand in one line: which attributes make a
// row, and what the costs of its members are those of. Under another shape, tasks stand
// in another line; see [Limiter.Recall].
func (l *lineOf) shape() string {
	rows := make([]string, 0, 1+len(l.attributes))
	if l.policy.Lane == "" {
		rows = append(rows, "") // the first is the lane
	}
	for _, name := range l.attributes {
		rows = append(rows, url.QueryEscape(name))
	}
	shape := keyName(strings.Join(rows, ",")) + costAttributes(l.policy)
	if shape == "" {
		return ""
	}
	return ":" + shape
}

// costAttributes are those that the limits' costs are in; none if all costs are 1.
func costAttributes(policy *policy.Policy) string {
	names, isAnyCostly := make([]string, len(policy.Limits)), false
	for i := range policy.Limits {
		names[i] = url.QueryEscape(policy.Limits[i].Cost)
		isAnyCostly = isAnyCostly || names[i] != ""
	}
	if !isAnyCostly {
		return ""
	}
	return ";" + keyName(strings.Join(names, ","))
}

// rowAttributes are those whose values make a row of the waiting line: the lane's
// first, and those that limits count by.
func rowAttributes(p *policy.Policy) []string {
	var names []string
	if p.Lane != "" {
		names = append(names, p.Lane)
	}
	for i := range p.Limits {
		if per := p.Limits[i].Per; per != "" && !slices.Contains(names, per) {
			names = append(names, per)
		}
	}
	return names
}

// row names the tasks that are counted by the same keys in the same lane.
func (l *lineOf) row(attributes map[string]string) string {
	var b strings.Builder
	for _, name := range l.attributes {
		value := keyName(attributes[name])
		b.WriteString(strconv.Itoa(len(value)))
		b.WriteByte(':')
		b.WriteString(value)
		b.WriteByte(',')
	}
	return b.String()
}

// standing is what ask is told of the tasks of these claims.
func (l *lineOf) standing(claims []*claim) []any {
	args := append(slices.Clone(l.head), idleSlot.Microseconds(), wokenWait.Microseconds(), len(claims))
	for _, claim := range claims {
		if claim.parks() {
			args = append(args, claim.member())
		} else {
			args = append(args, "")
		}
	}
	return args
}

// sameRow reports whether two claims' tasks stand in the same row.
func (l *lineOf) sameRow(a, b *claim) bool {
	return a.request.Park == b.request.Park && a.weight == b.weight && (!a.request.Park || l.lane(a.request.Attributes) == l.lane(b.request.Attributes))
}

// member is how a claim's task stands in its row.
func (c *claim) member() string {
	mark := ""
	if c.urgent {
		mark = "!"
	}
	for _, cost := range c.costs {
		if cost != 1 {
			texts := make([]string, len(c.costs))
			for i, cost := range c.costs {
				texts[i] = strconv.FormatInt(cost, 10)
			}
			return mark + strings.Join(texts, ",") + "/" + c.request.TaskID
		}
	}
	return mark + "/" + c.request.TaskID
}

// taskOf returns the task that stands in line as member.
func taskOf(member string) string {
	_, task, _ := strings.Cut(member, "/")
	return task
}

// lane returns the lane that these attributes are in.
func (l *lineOf) lane(attributes map[string]string) string {
	if l.policy.Lane == "" {
		return ""
	}
	return attributes[l.policy.Lane]
}

// signals is the channel on which those who serve the line hear of it.
func (l *lineOf) signals() string { return l.key + "/signal" }

// linesKey is where the lines of a policy are listed that have somebody in them.
func linesKey(policy string) string { return keyPrefix(policy) + "/lines" }

// callKey is the channel on which single tasks are called.
func callKey(policy string) string { return keyPrefix(policy) + "/call" }
