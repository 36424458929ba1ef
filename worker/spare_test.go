package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
	"github.com/rampmeter/rampmeter/worker"
)

// Law 4 for tasks without a retry left that have to wait for hours: they are not
// archived, keep all that they are, and run in their turn.
func TestLastAttemptsWaitForHours(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		r := newTestServer(t, server, policy.Policy{Limits: per(6 * time.Hour)})
		all := newJournal()
		stop := r.serve(all.ProcessTask)
		deadline := time.Now().Add(72 * time.Hour).Truncate(time.Second)
		for _, id := range []string{"1", "2", "3"} {
			r.add(asynq.NewTaskWithHeaders("call", []byte("payload"), map[string]string{"tenant": "a", "number": id}),
				asynq.MaxRetry(0), asynq.TaskID("task-"+id), asynq.Retention(time.Hour),
				asynq.Timeout(time.Minute), asynq.Deadline(deadline))
		}
		all.wait(t, 1)
		r.eventually("two put off", func() bool { return r.queue().Scheduled == 2 })
		assert.Zero(t, r.queue().Archived)
		assert.Zero(t, r.queue().FailedTotal)
		tasks, err := r.inspector.ListScheduledTasks("default")
		require.NoError(t, err)
		for _, task := range tasks {
			assert.Contains(t, []string{"task-1", "task-2", "task-3"}, task.ID)
			assert.Equal(t, "payload", string(task.Payload))
			assert.Equal(t, "a", task.Headers["tenant"])
			assert.Equal(t, "0/0", task.Headers[worker.HeaderSpare])
			assert.Equal(t, time.Hour, task.Retention)
			assert.Equal(t, time.Minute, task.Timeout)
			assert.WithinDuration(t, deadline, task.Deadline, time.Second)
			assert.Greater(t, time.Until(task.NextProcessAt), 6*time.Hour)
		}
		r.eventually("all are back", func() bool { return server.Client().Exists(t.Context(), "rm:{spares}").Val() == 0 })

		// Better numbers, and their turn has come. The first one's token is spent.
		stop()
		r.config.Policies.Policies[0].Limits = perSecond(10, 10)
		r.serve(all.ProcessTask)
		all.wait(t, 3)
		r.eventually("all completed", func() bool { return r.queue().Completed == 3 })
		assert.Zero(t, r.reported.Load())
	})
}

// A spare retry is there for waiting alone: a task that fails has failed.
func TestSpareRetriesAreNotForFailures(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: perSecond(10, 1), MaxWait: -1})
	r.config.Concurrency = 1 // where one task that waits is a crowd
	r.serve(func(context.Context, *asynq.Task) error { return errors.New("a real failure") })
	r.enqueue(3, asynq.MaxRetry(0), asynq.Timeout(time.Minute))
	r.eventually("three archived", func() bool { return r.queue().Archived == 3 })
	assert.Equal(t, int64(3), r.reported.Load(), "once each")
	for _, message := range r.archived() {
		assert.Contains(t, message, "a real failure")
	}
}

// What a killed process has left between a task's old and its new self is finished by
// another.
func TestSparesOfKilledProcessesComeBack(t *testing.T) {
	t.Parallel()
	r := newTestServer(t, throttletest.Embedded(t), policy.Policy{Limits: perSecond(10, 10)})
	left := `{"Taken":"2026-01-01T00:00:00Z","Returns":"2026-01-01T00:00:00Z","Queue":"default","ID":"lost",` +
		`"Type":"call","Payload":null,"Headers":{"rampmeter-spare-retry":"0/0"}}`
	require.NoError(t, r.limiter.Redis().HSet(t.Context(), "rm:{spares}", "default/lost", left).Err())
	all := newJournal()
	r.serve(all.ProcessTask)
	all.wait(t, 1)
	r.eventually("it is back", func() bool { return r.limiter.Redis().Exists(t.Context(), "rm:{spares}").Val() == 0 })
}
