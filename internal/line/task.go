package line

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Task is what decides where a task stands in line.
type Task struct {
	// ID and Attributes are those of the task's request.
	ID         string
	Attributes map[string]string
	Urgent     bool
	// Costs are in the order of the policy's limits.
	Costs []int64
	// Weight is that of the task's lane.
	Weight int64
}

// row names the tasks that are counted by the same keys in the same lane, and are of one
// queue; urgent ones have rows of their own.
func (l *Line) row(t Task) string {
	var b strings.Builder
	if t.Urgent {
		b.WriteByte('!')
	}
	write := func(value string) {
		b.WriteString(strconv.Itoa(len(value)))
		b.WriteByte(':')
		b.WriteString(value)
		b.WriteByte(',')
	}
	for _, name := range l.attributes {
		write(KeyName(t.Attributes[name]))
	}
	queue, _, hasQueue := strings.Cut(t.ID, "/")
	if !hasQueue {
		queue = "" // it is no TaskName
	}
	write(queue)
	return b.String()
}

// Asking is what ask is told of tasks. One without an ID does not join the line.
func (l *Line) Asking(tasks []Task) []any {
	rows, members := []any{}, []any{len(tasks)}
	numbers := map[string]int{}
	for _, task := range tasks {
		if task.ID == "" {
			members = append(members, "", 0)
			continue
		}
		row := l.row(task)
		number, known := numbers[row]
		if !known {
			number = len(numbers) + 1
			numbers[row] = number
			rows = append(rows, row, task.Weight)
		}
		members = append(members, task.member(), number)
	}
	args := []any{l.lane != "", idleSlot.Microseconds(), wokenWait.Microseconds(), len(numbers)}
	args = append(append(args, rows...), members...)
	return append([]any{1 + len(args)}, args...) // by which the rest is found without reading these
}

// member is how a task stands in its row.
func (t Task) member() string {
	if !slices.ContainsFunc(t.Costs, func(cost int64) bool { return cost != 1 }) {
		return "/" + t.ID
	}
	texts := make([]string, len(t.Costs))
	for i, cost := range t.Costs {
		texts[i] = strconv.FormatInt(cost, 10)
	}
	return strings.Join(texts, ",") + "/" + t.ID
}

// name is how the line knows a task of that row.
func (t Task) name(row string) string {
	return strconv.Itoa(len(row)) + "|" + row + t.member()
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

// Spot is where a task stands.
type Spot struct {
	Since time.Time // when it came, as the line has it
	Woken bool      // its turn has come: it does not wait in its row any more
	Asked int64     // how often it has asked for its start
}

// standing asks for the places of a task among those who stand by for slots, who are in no
// row.
func (l *Line) standing(ctx context.Context, pipe redis.Pipeliner, t Task, name string) (places []*redis.FloatCmd) {
	for i, limit := range l.limits {
		if limit.Algorithm != policy.Concurrency {
			continue
		}
		free := t.Costs[i]
		if !t.Urgent {
			free += limit.Kept()
		}
		key := l.Key + "/standing:" + StateKey(l.policy, limit.Name, t.Attributes[limit.Per])
		places = append(places, pipe.ZScore(ctx, key, fmt.Sprintf("%d,%d/%s", free, t.Costs[i], name)))
	}
	return places
}

// Find returns where a task stands, or nil if it is neither in line nor stands by.
func (l *Line) Find(ctx context.Context, task Task) (*Spot, error) {
	row, member := l.row(task), task.member()
	name := task.name(row)
	pipe := l.redis.Pipeline()
	waits := pipe.ZScore(ctx, l.Key+"/row:"+row, member)
	awake := pipe.HGet(ctx, l.Key+"/awake", name)
	again := pipe.HGet(ctx, l.Key+"/awake", "+"+member)
	stands := l.standing(ctx, pipe, task, name)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, l.wrap("where", err)
	}
	s, place := &Spot{Asked: 1}, waits.Val()
	if awake.Err() == nil {
		text, _, _ := strings.Cut(awake.Val(), ",")
		place, _ = strconv.ParseFloat(text, 64)
		s.Woken = true
	}
	for _, turn := range stands {
		if turn.Err() == nil {
			place, s.Woken = turn.Val(), true
		}
	}
	if place == 0 {
		return nil, nil
	}
	s.Since = time.UnixMicro(int64(place))
	if n, err := again.Int64(); err == nil {
		s.Asked += n
	}
	return s, nil
}
