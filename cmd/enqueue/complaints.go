package main

import (
	"errors"
	"io"

	"github.com/hibiken/asynq"
	"github.com/schollz/progressbar/v3"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/producer"
)

// mostComplaints is how many lines of one kind are named: a file of something
// else altogether should not fill the screen.
const mostComplaints = 20

// complaints tells of lines that became no new task.
type complaints struct {
	w          io.Writer
	bar        *progressbar.ProgressBar
	bad, there int
}

func (c *complaints) add(e *producer.LineError) {
	kind, count := "bad line", &c.bad
	reason := e.Err.Error()
	if producer.AlreadyThere(e) {
		kind, count = "already there: line", &c.there
		reason = "a task of this id is in the queue"
		if errors.Is(e, asynq.ErrDuplicateTask) {
			reason = "a task with this payload is in the queue, and unique says to have one only"
		}
	}
	if *count++; *count <= mostComplaints {
		_ = c.bar.Clear() // it comes back with the next line that is done
		say(c.w, "%s %d: %s", kind, e.Line, reason)
	}
}

func (c *complaints) finish() {
	if left := c.bad - mostComplaints; left > 0 {
		say(c.w, "and %s more", program.Counted(left, "bad line"))
	}
	if left := c.there - mostComplaints; left > 0 {
		say(c.w, "and %s more already there", program.Counted(left, "task"))
	}
}
