package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// vessel is a token bucket by its definition: the starts of cost 1 that a bucket of so
// many tokens, one of which comes back in so long, let pass.
type vessel struct {
	capacity int64
	token    time.Duration
	starts   []time.Time
}

// lets reports whether the bucket would have let all pass that it did, and one more
// then.
func (v *vessel) lets(at time.Time) bool {
	full := noon.Add(-time.Hour)
	for _, start := range slices.SortedFunc(slices.Values(append(slices.Clone(v.starts), at)), time.Time.Compare) {
		if start.Before(full.Add(-time.Duration(v.capacity-1) * v.token)) {
			return false
		}
		if full.Before(start) {
			full = start
		}
		full = full.Add(v.token)
	}
	return true
}

func (v *vessel) forget(at time.Time) {
	i := slices.IndexFunc(v.starts, at.Equal)
	v.starts = slices.Delete(v.starts, i, i+1)
}

// twoBuckets is a bucket that all users share, and one for each user, as they are and
// by their definition.
type twoBuckets struct {
	*testLimiter
	shared *vessel
	own    map[string]*vessel
	each   vessel // what a user's is at first
}

func newTwoBuckets(start makeLimiter, random *rand.Rand) *twoBuckets {
	ms := func(most int64) time.Duration { return time.Duration(1+random.Int64N(most)) * time.Millisecond }
	two := &twoBuckets{
		shared: &vessel{capacity: 1 + random.Int64N(6), token: ms(200)},
		own:    map[string]*vessel{},
		each:   vessel{capacity: 1 + random.Int64N(4), token: ms(900)},
	}
	own := bucket("own", 1, two.each.token, two.each.capacity)
	own.Per = "user"
	two.testLimiter = start(bucket("shared", 1, two.shared.token, two.shared.capacity), own)
	return two
}

func (two *twoBuckets) of(user string) *vessel {
	if two.own[user] == nil {
		each := two.each
		two.own[user] = &each
	}
	return two.own[user]
}

func (two *twoBuckets) let(user string, at time.Time) bool {
	return two.shared.lets(at) && two.of(user).lets(at)
}

func (two *twoBuckets) started(user string, at time.Time) {
	two.shared.starts, two.of(user).starts = append(two.shared.starts, at), append(two.of(user).starts, at)
}

// Laws 1, 3 and 6 for several buckets: a slot that one of them puts off keeps its token
// of the others, and none that somebody else could use before. So every request gets
// the first instant at which all buckets let it pass, by their definition; and who is
// denied passes then.
func TestPutOffSlotsLeaveOthersTheirs(t *testing.T) {
	t.Parallel()
	eachStory(t, 24, 1, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 6))
		two := newTwoBuckets(start, random)
		var now time.Duration
		for step := range 60 {
			now += time.Duration(random.Int64N(300)) * time.Millisecond * time.Duration(random.IntN(2))
			two.at(now)
			user, wait := fmt.Sprint(random.IntN(6)), time.Duration(random.Int64N(4))*time.Second
			r := two.reserve(wait, "user", user)
			told := fmt.Sprintf("seed %d, step %d: %s after %s", seed, step, r.Outcome, r.RetryAfter())
			require.Equal(t, r.Outcome == throttle.Granted, r.RetryAfter() <= wait, told)
			require.True(t, two.let(user, r.At), told)
			for x := r.At.Add(-time.Microsecond); !x.Before(r.Now); x = x.Add(-time.Duration(random.Int64N(50_000)+1) * time.Microsecond) {
				require.False(t, two.let(user, x), "%s, but could after %s", told, x.Sub(r.Now))
			}
			if r.Outcome == throttle.Denied && random.IntN(4) == 0 {
				now += r.RetryAfter()
				two.at(now - time.Microsecond)
				require.Equal(t, throttle.Denied, two.reserve(0, "user", user).Outcome, told)
				two.at(now)
				r = two.reserve(0, "user", user)
				require.Equal(t, throttle.Granted, r.Outcome, told)
			}
			if r.Outcome == throttle.Granted {
				two.started(user, r.At)
			}
		}
	})
}

// Law 1 where slots ahead are given back, those that were put off, too.
func TestPutOffSlotsGivenBack(t *testing.T) {
	t.Parallel()
	eachStory(t, 30, 1, func(t *testing.T, start makeLimiter, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 7))
		two := newTwoBuckets(start, random)
		type ahead struct {
			*throttle.Reservation
			user string
		}
		var slots []ahead
		var now time.Duration
		for step := range 80 {
			now += time.Duration(random.Int64N(400)) * time.Millisecond * time.Duration(random.IntN(2))
			two.at(now)
			slots = slices.DeleteFunc(slots, func(s ahead) bool { return !s.At.After(noon.Add(now)) })
			if len(slots) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(slots))
				require.NoError(t, slots[i].Cancel(t.Context()))
				two.shared.forget(slots[i].At)
				two.of(slots[i].user).forget(slots[i].At)
				slots = slices.Delete(slots, i, i+1)
				continue
			}
			user := fmt.Sprint(random.IntN(6))
			if r := two.reserve(time.Duration(random.Int64N(4))*time.Second, "user", user); r.Outcome == throttle.Granted {
				require.True(t, two.let(user, r.At), "seed %d, step %d: after %s", seed, step, r.RetryAfter())
				two.started(user, r.At)
				slots = append(slots, ahead{r, user})
			}
		}
	})
}

// A bucket that is refilled in intervals has for a slot that was put off what the refill
// before it brings, and nothing less for others until then.
func TestPutOffSlotsOfAnIntervalBucket(t *testing.T) {
	t.Parallel()
	own := window("own", 1, 10*time.Second, policy.AnchorClock)
	own.Per = "user"
	shared := bucket("shared", 2, time.Second, 2)
	shared.Refill = policy.RefillInterval
	throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
		b := newTestLimiterOn(t, server, shared, own)
		for _, user := range []string{"a", "a", "b"} { // now, in the next window, and now
			require.Equal(t, throttle.Granted, b.reserve(time.Minute, "user", user).Outcome)
		}
		for second := 1; second < 12; second++ {
			b.at(time.Duration(second) * time.Second)
			for i, want := range []bool{true, second != 10, false} {
				granted := b.reserve(0, "user", fmt.Sprint(second, i)).Outcome == throttle.Granted
				require.Equal(t, want, granted, "request %d of second %d", i, second)
			}
		}
	})
}

// A policy that loses its other limits, or begins to keep something for urgent tasks,
// still honours the slots that were put off.
func TestPutOffSlotsOutliveOtherLimits(t *testing.T) {
	t.Parallel()
	own := window("own", 1, 10*time.Second, policy.AnchorClock)
	own.Per = "user"
	shared := bucket("shared", 1, time.Second, 5)
	keeping := shared
	keeping.Headroom = policy.Headroom{Tokens: 1}
	for name, test := range map[string]struct {
		changed []policy.Limit
		pass    int // before the slots, and leave them theirs
	}{
		"alone": {[]policy.Limit{shared}, 1}, "keeping": {[]policy.Limit{keeping}, 0},
		"other numbers": {[]policy.Limit{bucket("shared", 2, time.Second, 5), own}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestLimiter(t, shared, own)
			for _, user := range []string{"a", "b", "c", "d", "e"} {
				require.Equal(t, noon, b.reserve(time.Minute, "user", user).At.UTC())
				require.Equal(t, noon.Add(10*time.Second), b.reserve(time.Minute, "user", user).At.UTC(), user)
			}
			b.change(test.changed...)
			b.at(9 * time.Second)
			for i, user := range []string{"v", "w", "x", "y", "z"} {
				require.Equal(t, i < test.pass, b.reserve(0, "user", user).Outcome == throttle.Granted, user)
			}
			require.GreaterOrEqual(t, b.reserve(0, "user", "z").Limits[0].ResetAfter, 3*time.Second)
		})
	}
}
