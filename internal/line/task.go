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
func (l *Line) row(t Task) string { return string(l.appendRow(nil, t)) }

func (l *Line) appendRow(row []byte, t Task) []byte {
	if t.Urgent {
		row = append(row, '!')
	}
	for _, name := range l.attributes {
		row = append(appendText(row, KeyName(t.Attributes[name])), ',')
	}
	queue, _, hasQueue := strings.Cut(t.ID, "/")
	if !hasQueue {
		queue = "" // it is no TaskName
	}
	return append(appendText(row, queue), ',')
}

// appendText appends a text with its length.
func appendText[T string | []byte](to []byte, text T) []byte {
	return append(append(strconv.AppendInt(to, int64(len(text)), 10), ':'), text...)
}

func appendNumber(to []byte, n int64) []byte {
	var digits [20]byte
	return appendText(to, strconv.AppendInt(digits[:0], n, 10))
}

// Asking is what ask is told of tasks, all in one text: most calls are answered without a
// look at it. One without an ID does not join the line.
func (l *Line) Asking(tasks []Task) []byte {
	const usual = 64 // bytes of a row, and of a member
	rows, members, text := make([]byte, 0, usual), make([]byte, 0, usual*len(tasks)), make([]byte, 0, usual)
	numbers := map[string]int64{}
	for i := range tasks {
		t := &tasks[i]
		if t.ID == "" {
			members = appendNumber(appendText(members, ""), 0)
			continue
		}
		text = l.appendRow(text[:0], *t)
		number, known := numbers[string(text)]
		if !known {
			number = int64(len(numbers) + 1)
			numbers[string(text)] = number
			rows = appendNumber(appendText(rows, text), t.Weight)
		}
		text = t.appendMember(text[:0])
		members = appendNumber(appendText(members, text), number)
	}
	told := make([]byte, 0, len(l.asking)+len(rows)+len(members)+usual)
	told = appendNumber(append(told, l.asking...), int64(len(numbers)))
	told = appendNumber(append(told, rows...), int64(len(tasks)))
	return append(told, members...)
}

// member is how a task stands in its row.
func (t Task) member() string { return string(t.appendMember(nil)) }

func (t Task) appendMember(member []byte) []byte {
	if slices.ContainsFunc(t.Costs, func(cost int64) bool { return cost != 1 }) {
		for i, cost := range t.Costs {
			if i > 0 {
				member = append(member, ',')
			}
			member = strconv.AppendInt(member, cost, 10)
		}
	}
	return append(append(member, '/'), t.ID...)
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
