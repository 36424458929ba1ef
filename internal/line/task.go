package line

import (
	"slices"
	"strconv"
	"strings"
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
	args := []any{l.hasLanes(), idleSlot.Microseconds(), wokenWait.Microseconds(), len(numbers)}
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
