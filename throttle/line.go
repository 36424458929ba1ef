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
	// Position counts from 1 among the tasks of the lane that are of the same queue and
	// counted by the same keys.
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
// lua/parts/line.lua.
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
	l.head = []any{policy.Lane != ""}
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

// row names the tasks that are counted by the same keys in the same lane, and are of one
// queue; urgent ones have rows of their own.
func (l *lineOf) row(c *claim) string {
	var b strings.Builder
	if c.urgent {
		b.WriteByte('!')
	}
	write := func(value string) {
		b.WriteString(strconv.Itoa(len(value)))
		b.WriteByte(':')
		b.WriteString(value)
		b.WriteByte(',')
	}
	for _, name := range l.attributes {
		write(keyName(c.request.Attributes[name]))
	}
	queue, _, _ := strings.Cut(c.request.TaskID, "/")
	if len(queue) == len(c.request.TaskID) {
		queue = "" // it is no TaskName
	}
	write(queue)
	return b.String()
}

// standing is what ask is told of the tasks of these claims.
func (l *lineOf) standing(claims []*claim) []any {
	rows, members := []any{}, []any{len(claims)}
	numbers := map[string]int{}
	for _, claim := range claims {
		if !claim.parks() {
			members = append(members, "", 0)
			continue
		}
		row := l.row(claim)
		number, known := numbers[row]
		if !known {
			number = len(numbers) + 1
			numbers[row] = number
			rows = append(rows, row, claim.weight)
		}
		members = append(members, claim.member(), number)
	}
	args := append(slices.Clone(l.head), idleSlot.Microseconds(), wokenWait.Microseconds(), len(numbers))
	args = append(append(args, rows...), members...)
	return append([]any{1 + len(args)}, args...) // by which the rest is found without reading these
}

// sameRow reports whether two claims' tasks stand alike.
func (l *lineOf) sameRow(a, b *claim) bool {
	return a.request.Park == b.request.Park && a.weight == b.weight && (!a.request.Park || l.lane(a.request.Attributes) == l.lane(b.request.Attributes))
}

// member is how a claim's task stands in its row.
func (c *claim) member() string {
	if !slices.ContainsFunc(c.costs, func(cost int64) bool { return cost != 1 }) {
		return "/" + c.request.TaskID
	}
	texts := make([]string, len(c.costs))
	for i, cost := range c.costs {
		texts[i] = strconv.FormatInt(cost, 10)
	}
	return strings.Join(texts, ",") + "/" + c.request.TaskID
}

// name is how the line knows a claim's task.
func (l *lineOf) name(c *claim) string {
	row := l.row(c)
	return strconv.Itoa(len(row)) + "|" + row + c.member()
}

// taskOf returns the task of that name in line.
func taskOf(name string) string {
	length, rest, _ := strings.Cut(name, "|")
	if n, err := strconv.Atoi(length); err == nil && n <= len(rest) {
		rest = rest[n:]
	}
	_, task, _ := strings.Cut(rest, "/")
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
