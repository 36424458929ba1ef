package producer_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func everySecond() *producer.Schedule {
	return &producer.Schedule{Entries: []producer.ScheduleEntry{
		{Name: "beat", Cron: "* * * * * *", Entry: producer.Entry{Type: "beat", Payload: []byte(`{}`)}},
	}}
}

// schedulers runs so many of them on a server until the test stops them; what
// they log comes out of the channel.
func schedulers(t *testing.T, srv *throttletest.Server, n int) (stop func(), messages <-chan string) {
	t.Helper()
	return schedulersOn(t, srv.Client(), n)
}

func schedulersOn(t *testing.T, rdb redis.UniversalClient, n int) (stop func(), messages <-chan string) {
	t.Helper()
	logged := make(chan string, 1000)
	log := zap.New(messageCore{messages: logged})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, n)
	for range n {
		s, err := producer.NewScheduler(rdb, everySecond(), log)
		require.NoError(t, err)
		go func() { ended <- s.Run(ctx) }()
	}
	stop = func() {
		cancel()
		for range n {
			assert.NoError(t, <-ended)
		}
		n = 0
	}
	t.Cleanup(stop)
	return stop, logged
}

// await reads messages until it has seen one so often.
func await(t *testing.T, messages <-chan string, want string, times int) (others []string) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for times > 0 {
		select {
		case got := <-messages:
			if got == want {
				times--
			} else {
				others = append(others, got)
			}
		case <-limit:
			require.Fail(t, "not logged in time", "%q is missing %d times, there was %q", want, times, others)
		}
	}
	return others
}

func TestEachTickIsEnqueuedOnce(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		stop, messages := schedulers(t, srv, 3)
		others := await(t, messages, "enqueued", 3)
		stop()
		count := 3
		for len(messages) > 0 {
			if message := <-messages; message == "enqueued" {
				count++
			} else {
				others = append(others, message)
			}
		}
		assert.NotContains(t, others, "already there", "it is the lock that keeps a tick from coming twice, not the task's ID")
		assert.NotContains(t, others, aheadOfTime)
		assert.NotContains(t, others, "tick lost, the next one is not affected")

		tasks, err := inspectorOn(srv).ListPendingTasks("default", asynq.PageSize(100))
		require.NoError(t, err)
		assert.Len(t, tasks, count)
		var ids []string
		for _, task := range tasks {
			var tick string
			_, err := fmt.Sscanf(task.ID, "schedule:beat:%s", &tick)
			require.NoError(t, err)
			_, err = time.Parse(time.RFC3339, tick)
			require.NoError(t, err)
			ids = append(ids, task.ID)
		}
		slices.Sort(ids)
		assert.Len(t, slices.Compact(ids), count)
	})
}

// A task that is done is gone from Redis: only the lock knows of its tick.
func TestEachTickIsEnqueuedOnceThoughItsTaskIsDone(t *testing.T) {
	t.Parallel()
	srv := throttletest.Embedded(t)
	stop, messages := schedulers(t, srv, 2)
	enqueued := 0
	for range 3 {
		await(t, messages, "enqueued", 1)
		enqueued++
		_, err := inspectorOn(srv).DeleteAllPendingTasks("default")
		require.NoError(t, err)
	}
	stop()
	for len(messages) > 0 {
		if <-messages == "enqueued" {
			enqueued++
		}
	}
	locks, err := srv.Client().Keys(t.Context(), "rampmeter:schedule:beat:*").Result()
	require.NoError(t, err)
	assert.Len(t, locks, enqueued, "as many ticks as tasks")
}

func TestSchedulerGoesOnAfterRedisWasGone(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		var link cable
		options := srv.Options()
		options.Dialer = link.dial
		rdb := redis.NewClient(options)
		t.Cleanup(func() { _ = rdb.Close() })
		_, messages := schedulersOn(t, rdb, 1)
		await(t, messages, "enqueued", 1)
		link.cut()
		await(t, messages, "tick lost, the next one is not affected", 2)
		link.mend()
		await(t, messages, "enqueued", 2)
	})
}

// cable is a connection to Redis that a test can cut.
type cable struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func (c *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isCut {
		return nil, errors.New("cable cut")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		c.conns = append(c.conns, conn)
	}
	return conn, err
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = false
}

func TestNewSchedulerRefusesABadSchedule(t *testing.T) {
	t.Parallel()
	_, err := producer.NewScheduler(nil, &producer.Schedule{}, nil)
	require.ErrorContains(t, err, "schedule: is empty")
}

// aheadOfTime tells of a tick that was not due when it was logged: gocron would
// have to ask for the next tick before it locks this one.
const aheadOfTime = "the tick is ahead of its time"

// messageCore is a log that sends on the messages.
type messageCore struct {
	messages chan<- string
	fields   []zapcore.Field
}

func (messageCore) Enabled(zapcore.Level) bool { return true }
func (messageCore) Sync() error                { return nil }

// With keeps the fields, for Write is given only those of the call itself.
func (c messageCore) With(fields []zapcore.Field) zapcore.Core {
	c.fields = append(slices.Clip(c.fields), fields...)
	return c
}

func (c messageCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return checked.AddCore(e, c)
}

func (c messageCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.messages <- e.Message
	for _, f := range append(slices.Clip(c.fields), fields...) {
		if f.Key == "tick" && f.Integer > e.Time.UnixNano() {
			c.messages <- aheadOfTime
		}
	}
	return nil
}
