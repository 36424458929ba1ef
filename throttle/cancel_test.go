package throttle_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestCancelGivesBackItsOwnOnce(t *testing.T) {
	t.Parallel()
	third := bucket("b", 3, time.Second, 3)
	third.Cost = "cost"
	b := newTestLimiter(t, third, window("w", 50, time.Minute, policy.AnchorFirst))

	before := b.reserve(0)
	r := b.reserve(0, "cost", "2")
	require.Equal(t, int64(0), r.Limits[0].Remaining)
	require.NoError(t, r.Cancel(t.Context()))
	require.NoError(t, r.Cancel(t.Context()))

	d, err := b.limiter.Peek(t.Context(), request(0))
	require.NoError(t, err)
	assert.Equal(t, before.Limits[0].Remaining, d.Limits[0].Remaining)
	assert.Equal(t, before.Limits[0].ResetAfter, d.Limits[0].ResetAfter)
	assert.Equal(t, before.Limits[1].Remaining, d.Limits[1].Remaining)

	// A slot ahead comes back too, and those behind it do not move.
	reservations := make([]*throttle.Reservation, 4)
	for i := range reservations {
		reservations[i] = b.reserve(time.Minute)
		require.Equal(t, throttle.Granted, reservations[i].Outcome)
	}
	require.NoError(t, reservations[2].Cancel(t.Context()))
	assert.LessOrEqual(t, b.reserve(time.Minute).At, reservations[3].At)
}

func TestCancelledInAnyOrderTheBucketIsFull(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, bucket("b", 3, time.Second, 2))
	var held []*throttle.Reservation
	for range 9 {
		held = append(held, b.reserve(time.Minute))
	}
	for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(len(held)) {
		require.NoError(t, held[i].Cancel(t.Context()))
	}
	assert.Empty(t, b.contents())
}

// To give back what was adjusted to nothing leaves everything as it is, to the byte.
func TestCancelOfNothingChangesNothing(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost = "cost"
		b := newTestLimiter(t, limit)
		require.Equal(t, throttle.Granted, b.reserve(0, "cost", "5").Outcome)
		require.Equal(t, throttle.Granted, b.reserve(time.Hour, "cost", "5").Outcome)
		r := b.reserve(time.Hour, "cost", "5")
		require.Equal(t, throttle.Granted, r.Outcome)
		require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "0"}))
		b.at(61 * time.Second) // the first has ended, and is not forgotten by this
		before := b.contents()
		require.NoError(t, r.Cancel(t.Context()))
		assert.Equal(t, before, b.contents())
	}, "concurrency") // a running task holds what it holds
}

// A slot of a bucket that is refilled in intervals, given up while others lie ahead,
// goes to whoever asks before the next refill, once; then it is gone, for the refill
// would have brought it anyway.
func TestCancelBetweenTwoRefills(t *testing.T) {
	t.Parallel()
	interval := bucket("b", 4, time.Second, 4)
	interval.Refill = policy.RefillInterval
	b := newTestLimiter(t, interval)
	held := make([]*throttle.Reservation, 12)
	for i := range held { // four now, and four slots of each of the next two refills
		held[i] = b.reserve(time.Minute)
		require.Equal(t, throttle.Granted, held[i].Outcome)
	}
	b.at(1500 * time.Millisecond)
	require.Equal(t, throttle.Denied, b.reserve(0).Outcome)
	require.NoError(t, held[4].Cancel(t.Context()))
	taken := b.reserve(0)
	require.Equal(t, throttle.Granted, taken.Outcome)
	assert.Equal(t, throttle.Denied, b.reserve(0).Outcome, "once")
	require.NoError(t, taken.Cancel(t.Context()))
	require.NoError(t, held[5].Cancel(t.Context()))
	status := b.reserve(0).Limits[0]
	assert.EqualValues(t, 1, status.Remaining, "one of two")

	b.at(2500 * time.Millisecond)
	assert.Equal(t, throttle.Denied, b.reserve(0).Outcome, "those of this refill have their slots")
	require.NoError(t, held[6].Cancel(t.Context()))
	assert.Equal(t, throttle.Denied, b.reserve(0).Outcome, "what an earlier refill brought")
}

// What a slot ahead costs counts in its own period, even if nothing was taken there any
// more; and nothing comes back from another one.
func TestAdjustedSlotAheadOfABucketRefilledInIntervals(t *testing.T) {
	t.Parallel()
	interval := bucket("b", 4, time.Second, 4)
	interval.Refill, interval.Cost = policy.RefillInterval, "cost"
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		adjust := func(r *throttle.Reservation, cost string) {
			require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": cost}))
		}
		b := newTestLimiterOn(t, server, interval)
		now, ahead := b.reserve(0, "cost", "4"), b.reserve(time.Minute, "cost", "2")
		require.Equal(t, noon.Add(time.Second), ahead.At.UTC())
		adjust(ahead, "0")
		adjust(ahead, "2")
		adjust(now, "1")
		assert.EqualValues(t, 2, b.reserve(0).Limits[0].Remaining, "of now")
		b.at(time.Second)
		assert.EqualValues(t, 1, b.reserve(0).Limits[0].Remaining, "of the next period")

		b = newTestLimiterOn(t, server, interval)
		b.reserve(0, "cost", "4")
		lost := b.reserve(time.Minute, "cost", "2")
		empty(t, b.client)
		b.at(500 * time.Millisecond)
		b.reserve(0, "cost", "2")
		adjust(lost, "0")
		assert.EqualValues(t, 1, b.reserve(0).Limits[0].Remaining, "what others took")
	})
}

// What Redis has lost can not come back: neither all of it nor a part is taken out of what
// others have since, where that is told apart by when it was.
func TestWhatWasLostIsNotTakenFromOthers(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost = "cost"
		for name, undo := range map[string]func(*throttle.Reservation) error{
			"cancel": func(r *throttle.Reservation) error { return r.Cancel(t.Context()) },
			"adjust": func(r *throttle.Reservation) error {
				return r.Adjust(t.Context(), map[string]string{"cost": "1"})
			},
		} {
			b := newTestLimiter(t, limit)
			lost := b.reserve(0, "cost", "4")
			empty(t, b.client)
			b.at(time.Second)
			require.Equal(t, throttle.Granted, b.reserve(0, "cost", "2").Outcome)
			require.NoError(t, undo(lost))
			require.Equal(t, int64(2), b.reserve(0).Limits[0].Remaining, name)
		}
	}, "token_bucket", "interval_bucket", "concurrency", "spacing")
}

// Who has nothing there any more, because Redis was emptied, gets nothing back: no slot that
// nobody took, and no more than what others have taken since.
func TestNothingComesBackAfterAFlush(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, limit policy.Limit) {
		limit.Cost = "cost"
		throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
			for name, test := range map[string]struct {
				taken  int // by others since
				adjust bool
			}{
				"to none": {0, false}, "adjusted to none": {0, true},
				"to others": {1, false}, "adjusted to others": {1, true},
			} {
				b := newTestLimiterOn(t, server, limit)
				asks := int(2 * limit.Capacity())
				slots := func() (at []time.Time) {
					for range asks {
						at = append(at, b.reserve(time.Hour).At)
					}
					return at
				}
				fresh := slots()
				require.NoError(t, b.client.FlushDB(t.Context()).Err())
				b.at(0)
				var held []*throttle.Reservation
				for range asks {
					held = append(held, b.reserve(time.Hour, "cost", "2"))
				}
				require.NoError(t, b.client.FlushDB(t.Context()).Err())
				b.at(0)
				for range test.taken {
					require.Equal(t, throttle.Granted, b.reserve(0).Outcome)
				}
				for _, r := range held {
					if test.adjust {
						require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "0"}), name)
					}
					require.NoError(t, r.Cancel(t.Context()), name)
				}
				for i, at := range slots() {
					assert.False(t, at.Before(fresh[i]), "%s: slot %d is %s too early", name, i, fresh[i].Sub(at))
				}
			}
		})
	}, "sliding_log", "concurrency") // which know whose a start or a slot was
}

// As many slots are kept as free as a state has room for. What is given back beyond that is
// gone, and the state takes all the same.
func TestFreeSlotsAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit policy.Limit
		most  int
	}{
		"token_bucket": {bucket("l", 1, time.Second, 1), 64},
		"spacing":      {spacing("l", 1, time.Second), 32},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				b := newTestLimiterOn(t, server, test.limit)
				var held []*throttle.Reservation
				for range 150 {
					held = append(held, b.reserve(time.Hour))
				}
				for i := 1; i < 149; i += 2 {
					require.NoError(t, held[i].Cancel(t.Context()))
				}
				assert.Equal(t, test.most, strings.Count(b.client.Get(t.Context(), "rm:{api}:l").Val(), ";"))
				for i := range 80 {
					want := held[2*i%len(held)+1].At
					if i >= test.most {
						want = held[149].At.Add(time.Duration(1+i-test.most) * time.Second)
					}
					require.Equal(t, want, b.reserve(time.Hour).At, i)
				}
			})
		})
	}
}

// What a start did not need comes back for as long as the bucket has not been full since, and
// not out of what others took later: however much came back before, which receipts tell of.
func TestNothingComesBackLongAfterward(t *testing.T) {
	t.Parallel()
	limit := bucket("l", 10, 10*time.Second, 10)
	limit.Cost = "cost"
	for name, undo := range map[string]func(*throttle.Reservation) error{
		"cancel": func(r *throttle.Reservation) error { return r.Cancel(t.Context()) },
		"adjust": func(r *throttle.Reservation) error { return r.Adjust(t.Context(), map[string]string{"cost": "1"}) },
	} {
		b := newTestLimiter(t, limit)
		for i := range 50 {
			b.at(time.Duration(i) * time.Second)
			r := b.reserve(0, "cost", "5")
			require.Equal(t, throttle.Granted, r.Outcome)
			require.NoError(t, r.Adjust(t.Context(), map[string]string{"cost": "1"}))
		}
		b.at(50 * time.Second)
		long := b.reserve(0, "cost", "5")
		require.Equal(t, throttle.Granted, long.Outcome)
		b.at(100 * time.Second)
		require.Equal(t, throttle.Granted, b.reserve(0, "cost", "5").Outcome)
		require.NoError(t, undo(long))
		assert.EqualValues(t, 4, b.reserve(0, "cost", "1").Limits[0].Remaining, name)
	}
}
