package producer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// numbered is n lines, each with its own number as the task's payload.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"type":"count","payload":"#%d#"}`+"\n", i+1)
	}
	return b.String()
}

// payloads are those of the pending tasks of the default queue, first in, first.
func payloads(t *testing.T, srv *throttletest.Server) []string {
	t.Helper()
	var all []string
	for page := 1; ; page++ {
		tasks, err := inspectorOn(srv).ListPendingTasks("default", asynq.PageSize(1000), asynq.Page(page))
		if errors.Is(err, asynq.ErrQueueNotFound) {
			return nil
		}
		require.NoError(t, err)
		if len(tasks) == 0 {
			return all
		}
		for _, task := range tasks {
			all = append(all, string(task.Payload))
		}
	}
}

// problems collects a batch's reports by line.
func problems(into *[]string) func(*producer.LineError) {
	return func(e *producer.LineError) { *into = append(*into, e.Error()) }
}

func TestBatchEnqueuesEveryLineOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		assert.IsIncreasing(t, slices.Sorted(slices.Values(enqueueByBatch(t, srv, 200))))
	})
}

// enqueueByBatch enqueues n tasks by a batch. It returns the numbers of their lines in the
// order of the queue.
func enqueueByBatch(t *testing.T, srv *throttletest.Server, n int) (order []int) {
	t.Helper()
	input := numbered(n)
	var last producer.Progress
	summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(input), producer.BatchConfig{
		Progress: func(p producer.Progress) {
			assert.GreaterOrEqual(t, p.Bytes, last.Bytes)
			last = p
		},
	})
	require.NoError(t, err)
	assert.Equal(t, producer.Summary{Enqueued: n}, summary)
	assert.Equal(t, producer.Progress{Summary: summary, Bytes: int64(len(input))}, last)
	for _, payload := range payloads(t, srv) {
		var line int
		_, err := fmt.Sscanf(payload, `"#%d#"`, &line)
		require.NoError(t, err)
		order = append(order, line-1)
	}
	require.Len(t, order, n)
	return order
}

func TestBatchOfOneWorkerKeepsTheOrder(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	_, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(numbered(50)), producer.BatchConfig{Workers: 1})
	require.NoError(t, err)
	for i, payload := range payloads(t, srv) {
		require.Equal(t, fmt.Sprintf(`"#%d#"`, i+1), payload)
	}
}

// Of lines with the same ID the first goes in, however many are under way.
func TestBatchTakesTheFirstOfAnID(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		var input strings.Builder
		for id := range 25 {
			for copies := range 4 {
				fmt.Fprintf(&input, `{"type":"t","id":"%d","payload":%d}`+"\n", id, copies)
			}
		}
		var there []string
		summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(input.String()),
			producer.BatchConfig{Report: problems(&there)})
		require.NoError(t, err)
		assert.Equal(t, producer.Summary{Enqueued: 25, AlreadyThere: 75}, summary)
		for _, payload := range payloads(t, srv) {
			require.Equal(t, "0", payload)
		}
	})
}

func TestBatchReportsLinesByNumber(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		input := `{"type":"t","id":"a"}

{"type":"t","id":"a"}
{"typ":"t"}
` + `{"type":"t","payload":"` + strings.Repeat("x", 200) + `"}
{"url":"/relative"}
{"type":"t","id":"b"}`
		var all []string
		var there, bad int
		summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(input), producer.BatchConfig{
			Workers: 1, MaxLine: 100,
			Report: func(e *producer.LineError) {
				all = append(all, e.Error())
				if producer.AlreadyThere(e) {
					there++
					assert.ErrorIs(t, e, asynq.ErrTaskIDConflict)
				} else {
					bad++
				}
			},
		})
		require.NoError(t, err)
		assert.Equal(t, producer.Summary{Enqueued: 2, AlreadyThere: 1, Bad: 3}, summary)
		assert.Equal(t, 1, there)
		assert.Equal(t, 3, bad)
		assert.ElementsMatch(t, []string{
			"line 3: enqueue t: task ID conflicts with another task",
			"line 4: typ: unknown; the fields are attributes, body, deadline, headers, id, max_retry, method, payload, process_at, process_in, queue, retention, timeout, type, unique, url",
			"line 5: longer than 100 bytes",
			`line 6: url "/relative" must start with http:// or https://`,
		}, all)
	})
}

func TestBatchStrict(t *testing.T) {
	t.Parallel()
	input := numbered(3) + "oops\n" + numbered(3) + "{}\n"

	t.Run("a file is checked before anything goes in", func(t *testing.T) {
		t.Parallel()
		srv := throttletest.Embedded(t)
		var reported []string
		summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(input),
			producer.BatchConfig{Strict: true, Report: problems(&reported)})
		var strict *producer.StrictError
		require.ErrorAs(t, err, &strict)
		assert.Equal(t, 4, strict.First.Line)
		assert.Equal(t, producer.Summary{Bad: 2}, summary)
		assert.Len(t, reported, 2, "all bad lines are named at once")
		assert.ErrorContains(t, err, "nothing was enqueued, because of 2 bad lines: line 4: no JSON")
		assert.Empty(t, payloads(t, srv))
	})
	t.Run("a good file goes in whole, from where it was read", func(t *testing.T) {
		t.Parallel()
		srv := throttletest.Embedded(t)
		file := strings.NewReader("heading\n" + numbered(40))
		_, err := file.Seek(int64(len("heading\n")), io.SeekStart)
		require.NoError(t, err)
		summary, err := producerOn(t, srv).Batch(t.Context(), file, producer.BatchConfig{Strict: true})
		require.NoError(t, err)
		assert.Equal(t, 40, summary.Enqueued)
		assert.Len(t, payloads(t, srv), 40)
	})
	t.Run("a pipe stops at the first bad line", func(t *testing.T) {
		t.Parallel()
		srv := throttletest.Embedded(t)
		var reported []string
		summary, err := producerOn(t, srv).Batch(t.Context(), io.MultiReader(strings.NewReader(input)),
			producer.BatchConfig{Strict: true, Report: problems(&reported)})
		var strict *producer.StrictError
		require.ErrorAs(t, err, &strict)
		assert.ErrorContains(t, err, "stopped at a bad line after 3 tasks had gone in: line 4:")
		assert.Equal(t, producer.Summary{Enqueued: 3, Bad: 1}, summary)
		assert.Len(t, reported, 1)
		assert.ElementsMatch(t, []string{`"#1#"`, `"#2#"`, `"#3#"`}, payloads(t, srv))
	})
	t.Run("tasks that are there already are fine", func(t *testing.T) {
		t.Parallel()
		srv := throttletest.Embedded(t)
		summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(strings.Repeat(`{"type":"t","id":"a"}`+"\n", 2)),
			producer.BatchConfig{Strict: true})
		require.NoError(t, err)
		assert.Equal(t, producer.Summary{Enqueued: 1, AlreadyThere: 1}, summary)
	})
}

func TestBatchWithConfig(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	input := strings.Repeat(`{"url":"http://h","attributes":{"installation":"1","points":"60"}}`+"\n", 5) +
		`{"url":"http://h"}` + "\n" +
		`{"url":"http://h","attributes":{"installation":"1","points":"101"}}` + "\n" +
		`{"type":"email:send"}`
	var reported []string
	summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(input),
		producer.BatchConfig{Config: twoLimits(), Report: problems(&reported)})
	require.NoError(t, err)
	assert.Equal(t, 6, summary.Enqueued)
	require.NotNil(t, summary.Estimate)
	assert.Equal(t, "2h0m0s", summary.Estimate.Duration.String())
	assert.Equal(t, []string{
		`line 6: attribute "installation" is missing: limit "hourly" of policy "github" needs it (set it as a task header)`,
		`line 7: cost 101 can never pass: limit "hourly" of policy "github" holds at most 100`,
	}, reported)
}

func TestBatchFromALine(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader("oops\n\n"+numbered(3)),
		producer.BatchConfig{From: 4, Workers: 1, Strict: true})
	require.NoError(t, err)
	assert.Equal(t, 2, summary.Enqueued)
	assert.Equal(t, []string{`"#2#"`, `"#3#"`}, payloads(t, srv))
}

func TestBatchStopsWhenRedisFails(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		// Line 4 fails only when 5 and 6 are in: the worst that two lines ahead can do.
		ahead := make(chan struct{}, 2)
		broken := errors.New("cable cut")
		p := interceptedOn(t, srv, func(payload string, enqueue func() error) error {
			switch payload {
			case "#4#":
				<-ahead
				<-ahead
				return broken
			case "#5#", "#6#":
				err := enqueue()
				ahead <- struct{}{}
				return err
			}
			return enqueue()
		})
		input := strings.Replace(numbered(9), "\n", "\n\n", 1)
		summary, err := p.Batch(t.Context(), strings.NewReader(input), producer.BatchConfig{Workers: 2})

		var stopped *producer.StoppedError
		require.ErrorAs(t, err, &stopped)
		require.ErrorContains(t, err, broken.Error(), "asynq cuts the chain, the words stay")
		in := payloads(t, srv)
		assert.Len(t, in, stopped.Enqueued)
		assert.Equal(t, summary.Enqueued, stopped.Enqueued)
		assert.Equal(t, 5, stopped.Line, "the line of #4#: the second line is blank")
		assert.Equal(t, []int{6, 7}, stopped.Ahead[:2])
		assert.ErrorContains(t, err, "stopped at line 5 (lines 6, 7")

		_, err = producerOn(t, srv).Batch(t.Context(), strings.NewReader(input), producer.BatchConfig{From: stopped.Line})
		require.NoError(t, err)
		assert.Subset(t, payloads(t, srv), []string{`"#4#"`, `"#8#"`, `"#9#"`}, "going on at that line misses none")
	})
}

func TestBatchStopsWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		summary, err := producerOn(t, srv).Batch(ctx, strings.NewReader(numbered(1000)), producer.BatchConfig{
			Workers: 4,
			Progress: func(p producer.Progress) {
				if p.Enqueued == 20 {
					cancel()
				}
			},
		})
		var stopped *producer.StoppedError
		require.ErrorAs(t, err, &stopped)
		require.ErrorIs(t, err, context.Canceled)
		assert.Less(t, summary.Enqueued, 1000)
		assert.Len(t, payloads(t, srv), summary.Enqueued, "what was under way is in, and counted")
		assert.Equal(t, summary.Enqueued, stopped.Line-1+len(stopped.Ahead))
	})
}

func TestBatchFinishesTheCallUnderWay(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	ctx, cancel := context.WithCancel(t.Context())
	p := interceptedOn(t, srv, func(_ string, enqueue func() error) error {
		cancel()
		return enqueue()
	})
	summary, err := p.Batch(ctx, strings.NewReader(numbered(9)), producer.BatchConfig{Workers: 1})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "stopped at line 2 after 1 task had gone in")
	assert.Equal(t, 1, summary.Enqueued)
	assert.Equal(t, []string{`"#1#"`}, payloads(t, srv))
}

func TestBatchDoesNotWaitForABlockedRead(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	input, typist := io.Pipe()
	t.Cleanup(func() { _ = typist.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _, _ = io.WriteString(typist, numbered(1)) }()
	summary, err := producerOn(t, srv).Batch(ctx, input, producer.BatchConfig{
		Progress: func(producer.Progress) { cancel() },
	})
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, 1, summary.Enqueued)
}

func TestBatchTellsThatTheInputBroke(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	broken := errors.New("disk gone")
	summary, err := producerOn(t, srv).Batch(t.Context(),
		io.MultiReader(strings.NewReader(numbered(2)), iotest.ErrReader(broken)), producer.BatchConfig{})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "stopped at line 3 after 2 tasks had gone in: reading the input: disk gone")
	assert.Equal(t, 2, summary.Enqueued)
}

// The client repeats a call whose answer was lost. The second try then finds the
// task that the first one made.
func TestBatchIsNotFooledByItsOwnRetry(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	p := interceptedOn(t, srv, func(payload string, enqueue func() error) error {
		if err := enqueue(); err != nil {
			return err
		}
		return enqueue()
	})
	summary, err := p.Batch(t.Context(), strings.NewReader(numbered(3)), producer.BatchConfig{})
	require.NoError(t, err)
	assert.Equal(t, producer.Summary{Enqueued: 3}, summary)
}

func TestRepeat(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := producerOn(t, srv)
		entry := producer.Entry{Type: "http:request", Payload: []byte(`{"url":"http://h"}`),
			Attributes: map[string]string{"installation": "7"}}
		summary, err := p.Repeat(t.Context(), entry, 30, producer.BatchConfig{Config: twoLimits()})
		require.NoError(t, err)
		assert.Equal(t, 30, summary.Enqueued)
		assert.Equal(t, &producer.Estimate{Duration: 2e9, Policy: "github", Limit: "all", Cost: 30}, summary.Estimate)
		assert.Len(t, payloads(t, srv), 30)

		_, err = p.Repeat(t.Context(), producer.Entry{}, 2, producer.BatchConfig{Strict: true})
		var strict *producer.StrictError
		require.ErrorAs(t, err, &strict)
		assert.Equal(t, 1, strict.Bad, "a strict one stops at the first")
	})
}

// A batch of tasks is read and enqueued even where a limiter could not yet be
// asked: Config is for judging, not for connecting.
func TestBatchNeedsNoRoute(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	summary, err := producerOn(t, srv).Batch(t.Context(), strings.NewReader(numbered(2)), producer.BatchConfig{Config: &policy.Config{}})
	require.NoError(t, err)
	assert.Equal(t, producer.Summary{Enqueued: 2, Estimate: &producer.Estimate{}}, summary)
}
