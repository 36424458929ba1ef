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
	Position    int64     // in its row, from 1
	Since       time.Time // when it came, as the line has it
	Woken       bool      // its turn has come
	Asked       int64     // how often it has asked for its start
	Rows, Tasks int64     // of the line
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
	stands := l.standing(ctx, pipe, task, name)
	woken := pipe.ZScore(ctx, l.Key+"/woken", name)
	late := pipe.ZScore(ctx, l.Key+"/late", name)
	place := pipe.ZScore(ctx, l.Key+"/row:"+row, member)
	rank := pipe.ZRank(ctx, l.Key+"/row:"+row, member)
	rows := pipe.HLen(ctx, l.Key+"/cursors")
	state := pipe.Get(ctx, l.Key)
	again := pipe.HGet(ctx, l.Key+"/asked", member)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, l.wrap("where", err)
	}
	isWoken := woken.Err() == nil || late.Err() == nil
	for _, turn := range stands {
		if turn.Err() == nil {
			place, isWoken = turn, true
		}
	}
	if errors.Is(place.Err(), redis.Nil) {
		return nil, nil
	}
	s := &Spot{
		Position: rank.Val() + 1, Since: time.UnixMicro(int64(place.Val())), Woken: isWoken, Asked: 1, Rows: rows.Val(),
	}
	if s.Woken {
		s.Position = 1
	}
	if n, err := again.Int64(); err == nil {
		s.Asked += n
	}
	if fields := strings.Split(state.Val(), ","); len(fields) > 1 {
		s.Tasks, _ = strconv.ParseInt(fields[1], 10, 64)
	}
	return s, nil
}
