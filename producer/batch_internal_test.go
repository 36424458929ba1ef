package producer

import (
	"errors"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
)

// A batch goes on at the first line that is not dealt with. Beyond it, only lines whose
// tasks went in are worth a word.
func TestBatchKnowsWhereToGoOn(t *testing.T) {
	t.Parallel()
	first, second := errors.New("first"), errors.New("second")
	b := newBatchRun(nil, BatchConfig{}.withDefaults(), nil)
	for _, c := range []struct {
		item
		last  int
		ahead []int
	}{
		{item{line: 2}, 2, nil},
		{item{line: 4, bad: errors.New("no task")}, 4, nil},
		{item{line: 5, err: asynq.ErrTaskIDConflict}, 5, nil},
		{item{line: 6, err: first}, 5, nil},
		{item{line: 7}, 5, []int{7}},
		{item{line: 8, bad: errors.New("no task")}, 5, []int{7}},
		{item{line: 9, err: second}, 5, []int{7}},
		{item{line: 11}, 5, []int{7, 11}},
		{item{line: 12, skipped: true}, 5, []int{7, 11}},
	} {
		b.collect(&c.item)
		assert.Equal(t, c.last, b.last, c.line)
		assert.Equal(t, c.ahead, b.ahead, c.line)
	}
	assert.Equal(t, first, b.stopped)
	assert.Equal(t, Summary{Enqueued: 3, AlreadyThere: 1, Bad: 2}, b.summary)
	assert.Equal(t, "lines 7, 11", lineList(b.ahead))
	assert.Equal(t, "line 7", lineList(b.ahead[:1]))
}
