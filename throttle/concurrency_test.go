package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// lease is how long the leases of these tests last.
const lease = 10 * time.Second

func slots(n int64) policy.Limit {
	return policy.Limit{Name: "slots", Algorithm: policy.Concurrency, Slots: n, Lease: lease, Cost: "cost"}
}

// ask reserves for a task, at once or within a wait.
func (b *testLimiter) ask(task string, wait time.Duration, attributes ...string) *throttle.Reservation {
	b.t.Helper()
	request := request(wait, attributes...)
	request.TaskID = task
	r, err := b.limiter.Reserve(b.t.Context(), request)
	require.NoError(b.t, err)
	return r
}

func (b *testLimiter) release(r *throttle.Reservation) {
	b.t.Helper()
	require.NoError(b.t, r.Release(b.t.Context()))
}

// remaining tells what the policy's last limit has left.
func (b *testLimiter) remaining() int64 {
	b.t.Helper()
	d, err := b.limiter.Peek(b.t.Context(), request(0))
	require.NoError(b.t, err)
	return d.Limits[len(d.Limits)-1].Remaining
}

// with returns the limiter with other numbers for its policy, as another process
// has them.
func (b *testLimiter) with(limits ...policy.Limit) *testLimiter {
	b.t.Helper()
	other := *b
	other.change(limits...)
	return &other
}

// S10: so many at once.
func TestS10SoManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(3))
	first, second, third := b.ask("1", 0), b.ask("2", 0), b.ask("3", 0)
	for i, r := range []*throttle.Reservation{first, second, third} {
		require.Equal(t, throttle.Granted, r.Outcome)
		assert.Equal(t, throttle.LimitStatus{
			Name: "slots", Cost: 1, Limit: 3, Remaining: int64(2 - i), ResetAfter: lease,
		}, r.Limits[0])
	}

	denied := b.ask("4", time.Hour)
	assert.Equal(t, throttle.Denied, denied.Outcome, "there are no slots ahead")
	assert.Equal(t, "slots", denied.HeldBy)
	assert.Equal(t, lease, denied.RetryAfter())

	b.at(time.Second)
	b.release(second)
	assert.Equal(t, throttle.Granted, b.ask("4", 0).Outcome)
	assert.Equal(t, throttle.Denied, b.ask("5", 0).Outcome)
	b.release(second)
	assert.Equal(t, throttle.Denied, b.ask("5", 0).Outcome, "a slot ends once")
}

// Law 3, when nobody renews: leases run out in their own order, whatever the order
// of asking, and to the microsecond.
func TestConcurrencyTellsWhenEnoughLeasesRunOut(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(6))
	b.at(0)
	b.ask("a", 0, "cost", "2")
	b.at(time.Second)
	b.ask("b", 0)
	b.at(2 * time.Second)
	b.ask("c", 0, "cost", "3")
	b.at(3 * time.Second)
	for cost, after := range map[int]time.Duration{1: 0, 2: 0, 3: time.Second, 4: 2 * time.Second, 6: 2 * time.Second} {
		at := lease + after
		r := b.ask("d", 0, "cost", fmt.Sprint(cost))
		require.Equal(t, throttle.Denied, r.Outcome)
		assert.Equal(t, noon.Add(at), r.At.UTC(), "cost %d", cost)
	}
	for cost, after := range map[int]time.Duration{2: 0, 3: time.Second, 4: 2 * time.Second} {
		for _, early := range []time.Duration{time.Microsecond, 0} {
			at := lease + after - early
			b := newTestLimiter(t, slots(6))
			for i, cost := range []string{"2", "1", "3"} {
				b.at(time.Duration(i) * time.Second)
				b.ask(cost, 0, "cost", cost)
			}
			b.at(at)
			assert.Equal(t, early == 0, b.ask("d", 0, "cost", fmt.Sprint(cost)).Outcome == throttle.Granted,
				"cost %d at %s", cost, at)
		}
	}
}

func TestConcurrencyCost(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(3))
	two := b.ask("1", 0, "cost", "2")
	require.Equal(t, int64(1), two.Limits[0].Remaining)
	assert.Equal(t, throttle.Denied, b.ask("2", 0, "cost", "2").Outcome)
	one := b.ask("2", 0)
	require.Equal(t, throttle.Granted, one.Outcome)
	assert.Equal(t, throttle.Denied, b.ask("3", 0).Outcome)
	b.release(one)
	assert.Equal(t, int64(1), b.remaining())
	b.release(two)
	assert.Equal(t, int64(3), b.remaining())
	assert.Equal(t, throttle.Never, b.ask("4", 0, "cost", "4").Outcome)
}

// The same task's asking again must not be refused, nor be paid twice.
func TestConcurrencyReentry(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(2))
	b.ask("1", 0)
	asleep := b.ask("2", 0)
	b.at(time.Second)
	again := b.ask("2", 0)
	require.Equal(t, throttle.Granted, again.Outcome, "although nothing is free")
	assert.Equal(t, int64(0), b.remaining())

	// It is the later one's now.
	b.release(asleep)
	require.NoError(t, asleep.Cancel(t.Context()))
	assert.Equal(t, int64(0), b.remaining())
	b.release(again)
	assert.Equal(t, int64(1), b.remaining())
}

func TestConcurrencyReentryAtAnotherCost(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(5))
	b.ask("1", 0, "cost", "3")
	b.at(time.Second)
	b.ask("2", 0)
	assert.Equal(t, throttle.Granted, b.ask("1", 0, "cost", "4").Outcome, "3 are its own")
	assert.Equal(t, int64(0), b.remaining())
	denied := b.ask("1", 0, "cost", "5")
	assert.Equal(t, noon.Add(time.Second+lease), denied.At.UTC(), "when the other's one has run out")
	assert.Equal(t, throttle.Granted, b.ask("1", 0, "cost", "2").Outcome)
	assert.Equal(t, int64(2), b.remaining())
}

// Tasks without an ID are not taken for one another.
func TestConcurrencyUnnamedTasks(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(2))
	first := b.ask("", 0)
	require.Equal(t, throttle.Granted, b.ask("", 0).Outcome)
	require.Equal(t, throttle.Denied, b.ask("", 0).Outcome)
	b.release(first)
	assert.Equal(t, throttle.Granted, b.ask("", 0).Outcome)
}

// A limiter that is dropped without a release, as in a crash, loses its slots when
// their leases run out by Redis's time, not before and not after.
func TestConcurrencyReclaimsAfterACrash(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(2))
	crashed := b.with(slots(2))
	crashed.ask("1", 0)
	crashed.ask("2", 0)
	b.at(lease - time.Microsecond)
	denied := b.ask("3", 0)
	assert.Equal(t, time.Microsecond, denied.RetryAfter())
	b.at(lease)
	assert.Equal(t, int64(2), b.remaining())
	assert.Equal(t, throttle.Granted, b.ask("3", 0).Outcome)
}

func TestConcurrencyPerKey(t *testing.T) {
	t.Parallel()
	limit := slots(1)
	limit.Per = "tenant"
	b := newTestLimiter(t, limit)
	names := []string{"a", "b", "{x}\n", strings.Repeat("long", 2500)}
	for _, name := range names {
		require.Equal(t, throttle.Granted, b.ask("1", 0, "tenant", name).Outcome)
		require.Equal(t, throttle.Denied, b.ask("2", 0, "tenant", name).Outcome)
	}
	// The same for names of tasks.
	b = newTestLimiter(t, slots(4))
	for _, name := range names {
		require.Equal(t, throttle.Granted, b.ask(name, 0).Outcome)
	}
	for _, name := range names {
		require.Equal(t, throttle.Granted, b.ask(name, 0).Outcome)
	}
	require.Equal(t, throttle.Denied, b.ask("1", 0).Outcome)
}

func TestConcurrencyCancelGivesTheSlotBack(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(1))
	r := b.ask("1", 0)
	b.at(time.Second)
	require.NoError(t, r.Cancel(t.Context()))
	assert.Empty(t, b.contents())
	b.ask("1", 0)
	b.release(r)
	assert.Equal(t, int64(0), b.remaining(), "what was cancelled is another's now")
}

func TestConcurrencyAdjustChangesNoSlots(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(5))
	r := b.ask("1", 0, "cost", "2")
	require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "4"}))
	assert.Equal(t, int64(3), b.remaining())
	b.release(r)
	assert.Equal(t, int64(5), b.remaining())
}

// Fewer slots end nobody's; more are there at once.
func TestConcurrencyLiveChange(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(4))
	var running []*throttle.Reservation
	for i := range 4 {
		b.at(time.Duration(i) * time.Second)
		running = append(running, b.ask(fmt.Sprint(i), 0))
	}
	fewer := b.with(slots(2))
	denied := fewer.ask("new", 0)
	assert.Equal(t, throttle.Denied, denied.Outcome)
	assert.Equal(t, noon.Add(2*time.Second+lease), denied.At.UTC(), "when one is left")
	assert.Equal(t, int64(0), denied.Limits[0].Remaining)
	assert.Equal(t, throttle.Granted, fewer.ask("3", 0).Outcome, "its own is still there")
	fewer.release(running[0])
	fewer.release(running[1])
	assert.Equal(t, throttle.Denied, fewer.ask("new", 0).Outcome)
	fewer.release(running[2])
	assert.Equal(t, throttle.Granted, fewer.ask("new", 0).Outcome)

	more := b.with(slots(5))
	assert.Equal(t, int64(3), more.remaining())

	longer := slots(5)
	longer.Lease = time.Hour
	assert.Equal(t, time.Hour, b.with(longer).ask("other", 0).Limits[0].ResetAfter)
}

// A slot that another limit puts ahead has its lease from now on, until as long
// after it as any lease.
func TestConcurrencyWithASlotAhead(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("rate", 1, time.Second, 1), slots(2))
	b.ask("1", 0)
	ahead := b.ask("2", time.Minute)
	require.Equal(t, throttle.Granted, ahead.Outcome)
	assert.Equal(t, time.Second, ahead.RetryAfter())
	assert.Equal(t, int64(0), ahead.Limits[1].Remaining)
	assert.Equal(t, time.Second+lease, ahead.Limits[1].ResetAfter)

	// Nobody is let in for when a lease ought to run out: it may be renewed.
	denied := b.ask("3", time.Minute)
	assert.Equal(t, throttle.Denied, denied.Outcome)
	assert.Equal(t, lease, denied.RetryAfter())
	b.at(lease)
	assert.Equal(t, throttle.Granted, b.ask("3", 0).Outcome)
	require.NoError(t, ahead.Cancel(t.Context()))
	assert.Equal(t, int64(1), b.remaining())
}

// Law 2.
func TestConcurrencyDenialsAndPeeksWriteNothing(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, window("w", 3, time.Hour, policy.AnchorClock), slots(2))
	b.ask("1", 0)
	b.ask("2", 0)
	before := b.contents()
	for _, task := range []string{"3", ""} {
		require.Equal(t, throttle.Denied, b.ask(task, time.Minute).Outcome)
	}
	b.remaining()
	assert.Equal(t, before, b.contents())
	b.at(lease) // not even when there is something to clear away
	before = b.contents()
	b.remaining()
	assert.Equal(t, before, b.contents())
}

// Law 12: the key of a limit lives as long as its last lease, whatever has been made of
// those before.
func TestConcurrencyKeyOutlivesItsLeases(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(12, 1))
	b := newTestLimiter(t, slots(6), bucket("rate", 3, time.Second, 3)) // which puts slots ahead
	running := map[string]*throttle.Reservation{}
	for range 300 {
		task := strconv.Itoa(random.IntN(6))
		switch r := running[task]; {
		case r == nil:
			if r = b.ask(task, time.Duration(random.Int64N(int64(3*time.Second)))); r.Outcome == throttle.Granted {
				running[task] = r
			}
		case random.IntN(3) == 0:
			_, err := throttle.RenewCall(t.Context(), r, time.Time{})
			require.NoError(t, err)
		default:
			b.release(r)
			delete(running, task)
		}
		d, err := b.limiter.Peek(t.Context(), request(0))
		require.NoError(t, err)
		lives := b.client.PTTL(t.Context(), "rm:{api}:slots").Val()
		assert.GreaterOrEqual(t, max(0, lives), d.Limits[0].ResetAfter.Truncate(time.Millisecond))
		b.clock.Advance(time.Duration(random.Int64N(int64(2 * time.Second))))
	}
}

// A clock set back keeps a dead task's lease for one period more, not for as long
// as it was set back.
func TestConcurrencyClockSetBack(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, slots(3))
	b.at(time.Hour)
	b.ask("dead", 0)
	b.at(0)
	b.release(b.ask("any", 0)) // the next change sees it
	b.at(lease - time.Microsecond)
	assert.Equal(t, int64(2), b.remaining())
	b.at(lease)
	assert.Equal(t, int64(3), b.remaining())
}

// More leases than one call clears away or looks through.
func TestConcurrencyManyLeases(t *testing.T) {
	t.Parallel()
	const many = 800
	b := newTestLimiterOn(t, throttletest.Redis(t), slots(many))
	for i := range many / 2 {
		b.ask(fmt.Sprint(i), 0)
	}
	b.at(time.Second)
	for i := range many / 2 {
		b.ask(fmt.Sprint(many/2+i), 0)
	}
	denied := b.ask("big", 0, "cost", fmt.Sprint(many/2+1))
	assert.Equal(t, noon.Add(time.Second+lease), denied.At.UTC())
	b.at(lease)
	assert.Equal(t, int64(many/2), b.remaining())
	assert.Equal(t, throttle.Granted, b.ask("big", 0, "cost", fmt.Sprint(many/2)).Outcome)
	assert.Equal(t, throttle.Denied, b.ask("small", 0).Outcome)
}
