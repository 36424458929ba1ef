package throttle

import (
	"net/url"
	"strings"
)

// TaskName is what a task is called in requests: its ID is unique in its queue only,
// and two tasks must not be taken for one that asks again for its own slot. A producer
// and a worker of the same task have to agree on it.
func TaskName(queue, id string) string { return url.PathEscape(queue) + "/" + id }

// ParseTaskName is TaskName's inverse; ok is false for what is no such name.
func ParseTaskName(name string) (queue, id string, ok bool) {
	escaped, id, ok := strings.Cut(name, "/")
	if !ok {
		return "", "", false
	}
	queue, err := url.PathUnescape(escaped)
	return queue, id, err == nil
}
