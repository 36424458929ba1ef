package producer

import (
	"fmt"
	"slices"
	"strings"
)

// frontier knows up to which line everything is dealt with, while lines finish
// in any order. It holds no more than the lines under way.
type frontier struct {
	next  int // the lowest sequence not dealt with
	last  int // the line before it
	ahead map[int]ahead
}

// ahead is a line dealt with before an earlier one was.
type ahead struct {
	line     int
	enqueued bool
}

func (f *frontier) add(i item, enqueued bool) {
	if f.ahead == nil {
		f.ahead = map[int]ahead{}
	}
	f.ahead[i.sequence] = ahead{i.line, enqueued}
	for {
		reached, ok := f.ahead[f.next]
		if !ok {
			return
		}
		delete(f.ahead, f.next)
		f.last = reached.line
		f.next++
	}
}

// aheadLines are the lines beyond the frontier whose tasks went in.
func (f *frontier) aheadLines() []int {
	var lines []int
	for _, a := range f.ahead {
		if a.enqueued {
			lines = append(lines, a.line)
		}
	}
	slices.Sort(lines)
	return lines
}

// lineList names lines as in "line 7" or "lines 7, 9, 12".
func lineList(lines []int) string {
	if len(lines) == 1 {
		return fmt.Sprintf("line %d", lines[0])
	}
	texts := make([]string, len(lines))
	for i, line := range lines {
		texts[i] = fmt.Sprint(line)
	}
	return "lines " + strings.Join(texts, ", ")
}
