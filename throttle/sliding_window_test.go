package throttle_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func sliding(name string, count int64, period, precision time.Duration) policy.Limit {
	return policy.Limit{
		Name: name, Algorithm: policy.SlidingWindow, Cost: "cost",
		Rate: policy.Rate{Count: count, Period: period}, Precision: precision,
	}
}

// One rule: limit, interval, precision. A start counts in its bucket until that is
// a whole period old.
func TestS7SlidingWindowOneRule(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, sliding("rule", 3, 4*time.Second, time.Second))
	for i, step := range []struct {
		at        time.Duration
		granted   bool
		retry     time.Duration
		remaining int64
		reset     time.Duration
	}{
		{0, true, 0, 2, 5 * time.Second},
		{900 * time.Millisecond, true, 0, 1, 4100 * time.Millisecond},
		{2500 * time.Millisecond, true, 0, 0, 4500 * time.Millisecond},
		{2500 * time.Millisecond, false, 2500 * time.Millisecond, 0, 4500 * time.Millisecond},
		{5*time.Second - time.Microsecond, false, time.Microsecond, 0, 2*time.Second + time.Microsecond},
		{5 * time.Second, true, 0, 1, 5 * time.Second},
		{5 * time.Second, true, 0, 0, 5 * time.Second},
		{5 * time.Second, false, 2 * time.Second, 0, 5 * time.Second},
		{7 * time.Second, true, 0, 0, 5 * time.Second},
		{time.Minute, true, 0, 2, 5 * time.Second},
	} {
		b.at(step.at)
		r := b.reserve(0)
		assert.Equal(t, step.granted, r.Outcome == throttle.Granted, "step %d", i)
		assert.Equal(t, step.retry, r.RetryAfter(), "step %d", i)
		assert.Equal(t, throttle.LimitStatus{
			Name: "rule", Cost: 1, Limit: 3, Remaining: step.remaining, ResetAfter: step.reset,
		}, r.Limits[0], "step %d", i)
	}
}

// Several rules: all must pass, else none counts; each answers for itself.
func TestS7SlidingWindowSeveralRules(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t,
		sliding("second", 2, time.Second, 100*time.Millisecond), sliding("minute", 5, time.Minute, time.Second))
	type answer struct {
		remaining int64
		reset     time.Duration
	}
	for i, step := range []struct {
		at             time.Duration
		heldBy         string
		retry          time.Duration
		second, minute answer
	}{
		{0, "", 0, answer{1, 1100 * time.Millisecond}, answer{4, 61 * time.Second}},
		{0, "", 0, answer{0, 1100 * time.Millisecond}, answer{3, 61 * time.Second}},
		{0, "second", 1100 * time.Millisecond, answer{0, 1100 * time.Millisecond}, answer{3, 61 * time.Second}},
		{2 * time.Second, "", 0, answer{1, 1100 * time.Millisecond}, answer{2, 61 * time.Second}},
		{2 * time.Second, "", 0, answer{0, 1100 * time.Millisecond}, answer{1, 61 * time.Second}},
		{4 * time.Second, "", 0, answer{1, 1100 * time.Millisecond}, answer{0, 61 * time.Second}},
		{4 * time.Second, "minute", 57 * time.Second, answer{1, 1100 * time.Millisecond}, answer{0, 61 * time.Second}},
		{61 * time.Second, "", 0, answer{1, 1100 * time.Millisecond}, answer{1, 61 * time.Second}},
	} {
		b.at(step.at)
		r := b.reserve(0)
		assert.Equal(t, step.heldBy, r.HeldBy, "step %d", i)
		assert.Equal(t, step.retry, r.RetryAfter(), "step %d", i)
		for j, want := range []answer{step.second, step.minute} {
			assert.Equal(t, want, answer{r.Limits[j].Remaining, r.Limits[j].ResetAfter}, "step %d, rule %d", i, j)
		}
	}
}

// A bucket's slots are spread over it, and its end is left free for late starts.
func TestSlidingWindowSpreadsWithinABucket(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, sliding("w", 8, 4*time.Second, 2*time.Second))
	for i, want := range []time.Duration{
		0, 0, 0, 0, 0, 0, 0, 0, // now is not spread
		6000, 6187, 6375, 6562, 6750, 6937, 7125, 7312, // from 6s to 7.5s of the bucket [6s, 8s)
		12_000, 12_187,
	} {
		assert.Equal(t, want, b.reserve(time.Hour).At.Sub(noon).Truncate(time.Millisecond)/time.Millisecond, "slot %d", i)
	}
}

// Where slots ahead were granted to others, an earlier request passes only if every
// interval that contains both has room for both.
func TestSlidingWindowInsertsBeforeSlotsAhead(t *testing.T) {
	t.Parallel()
	each := window("each", 1, 2*time.Second, policy.AnchorClock)
	each.Per = "user"
	b := newTestLimiter(t, sliding("all", 3, time.Second, 100*time.Millisecond), each)
	for _, user := range []string{"ann", "bea"} {
		require.Equal(t, noon, b.reserve(0, "user", user).At.UTC())
	}
	b.at(1200 * time.Millisecond)
	for _, user := range []string{"ann", "bea"} {
		require.Equal(t, 20, int(b.reserve(time.Minute, "user", user).At.Sub(noon)/(100*time.Millisecond)), user)
	}
	assert.Equal(t, throttle.Granted, b.reserve(0, "user", "cid").Outcome)
	r := b.reserve(0, "user", "dan")
	assert.Equal(t, throttle.Denied, r.Outcome)
	assert.Equal(t, 2300*time.Millisecond, r.At.Sub(noon), "when cid's bucket no longer counts with those of ann and bea")
}

func TestSlidingWindowReachesAThousandBucketsAhead(t *testing.T) {
	t.Parallel()
	b := newTestLimiterOn(t, throttletest.Redis(t), sliding("w", 1, time.Second, time.Second))
	b.at(300 * time.Millisecond)
	last := time.Duration(0)
	for {
		r := b.reserve(time.Hour)
		if r.Outcome == throttle.Denied {
			assert.Equal(t, last+2*time.Second, r.At.Sub(noon))
			break
		}
		last = r.At.Sub(noon)
	}
	assert.Equal(t, 998*time.Second, last)
}

func TestSlidingWindowKeepsTheUsedShareOnAChange(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, c := range map[string]struct {
		was, is   policy.Limit
		remaining int64
		retry     time.Duration // of a request for all that the limit holds
	}{
		"more":           {sliding("w", 10, 10*second, second), sliding("w", 100, 10*second, second), 40, 11 * second},
		"less":           {sliding("w", 10, 10*second, second), sliding("w", 4, 10*second, second), 1, 11 * second},
		"less, rounded":  {sliding("w", 10, 10*second, second), sliding("w", 1, 10*second, second), 0, 11 * second},
		"longer":         {sliding("w", 10, 10*second, second), sliding("w", 10, 60*second, 6*second), 4, 66 * second},
		"shorter":        {sliding("w", 10, 10*second, second), sliding("w", 10, second, second/10), 4, 1100 * time.Millisecond},
		"finer":          {sliding("w", 10, 10*second, second), sliding("w", 10, 10*second, second/2), 4, 10500 * time.Millisecond},
		"coarser":        {sliding("w", 10, 10*second, second), sliding("w", 10, 10*second, 5*second), 4, 15 * second},
		"all of it":      {sliding("w", 6, 10*second, second), sliding("w", 12, 20*second, second), 0, 21 * second},
		"all of it less": {sliding("w", 6, 10*second, second), sliding("w", 1, second, second), 0, 2 * second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestLimiter(t, c.was)
			for i := range 6 {
				b.at(time.Duration(25+i) * second)
				b.reserve(0)
			}
			b.at(30 * second)
			b.change(c.is)
			all := strconv.FormatInt(c.is.Rate.Count, 10)
			r := b.reserve(0, "cost", all)
			assert.Equal(t, throttle.Denied, r.Outcome)
			assert.Equal(t, c.remaining, r.Limits[0].Remaining)
			assert.Equal(t, c.retry, r.RetryAfter())
			b.at(30*second + c.retry - time.Microsecond)
			assert.Equal(t, throttle.Denied, b.reserve(0, "cost", all).Outcome)
			b.at(30*second + c.retry)
			assert.Equal(t, throttle.Granted, b.reserve(0, "cost", all).Outcome)
		})
	}
}

func TestSlidingWindowSlotsAheadOutliveAChange(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, sliding("w", 2, 2*time.Second, time.Second))
	var held []*throttle.Reservation
	for range 4 {
		held = append(held, b.reserve(time.Minute))
	}
	require.Equal(t, noon.Add(3*time.Second), held[2].At.UTC())
	b.change(sliding("w", 1, 2*time.Second, time.Second))
	assert.Equal(t, noon.Add(6*time.Second), b.reserve(0).At.UTC(), "after the two slots at 3s")
	for _, r := range held {
		require.NoError(t, r.Cancel(t.Context()))
	}
	assert.Equal(t, noon.Add(6*time.Second), b.reserve(0).At.UTC(), "what is given back is by the numbers of before")
	b.change(sliding("w", 2, 2*time.Second, time.Second))
	assert.Equal(t, noon, b.reserve(0).At.UTC(), "where it is free again")
}

func TestSlidingWindowLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := newTestLimiter(t, sliding("w", 3, time.Second, 100*time.Millisecond))
	var held []*throttle.Reservation
	for range 20 {
		held = append(held, b.reserve(time.Minute))
	}
	state, reset := "rm:{api}:w", b.reserve(0).Limits[0].ResetAfter
	assert.Equal(t, reset, b.client.PTTL(t.Context(), state).Val())
	for _, r := range held {
		require.Equal(t, throttle.Granted, r.Outcome)
		require.NoError(t, r.Cancel(t.Context()))
	}
	assert.Empty(t, b.contents())
}
