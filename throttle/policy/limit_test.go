package policy_test

import (
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

var minutely = policy.Rate{Count: 60, Period: time.Minute}

func TestLimitAppliesDefaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		limit    policy.Limit
		kind     string
		capacity int64
		bucket   time.Duration
	}{
		"a window":                   {policy.Limit{Algorithm: policy.FixedWindow, Rate: minutely}, "fixed_window", 60, 3 * time.Second},
		"a sliding window":           {policy.Limit{Algorithm: policy.SlidingWindow, Rate: minutely, Precision: time.Second}, "sliding_window", 60, time.Second},
		"a bucket without a burst":   {policy.Limit{Algorithm: policy.TokenBucket, Rate: minutely}, "token_bucket", 60, 3 * time.Second},
		"a bucket with a burst":      {policy.Limit{Algorithm: policy.TokenBucket, Rate: minutely, Burst: 7}, "token_bucket", 7, 3 * time.Second},
		"a bucket by intervals":      {policy.Limit{Algorithm: policy.TokenBucket, Rate: minutely, Refill: policy.RefillInterval}, "interval_bucket", 60, 3 * time.Second},
		"a spacing":                  {policy.Limit{Algorithm: policy.Spacing, Rate: minutely, Burst: 7}, "spacing", 1, 3 * time.Second},
		"slots":                      {policy.Limit{Algorithm: policy.Concurrency, Slots: 9}, "concurrency", 9, time.Microsecond},
		"a burst that counts nought": {policy.Limit{Algorithm: policy.SlidingLog, Rate: minutely, Burst: 7}, "sliding_log", 60, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.kind, test.limit.Kind())
			assert.Equal(t, test.capacity, test.limit.Capacity())
			assert.Equal(t, test.bucket, test.limit.BucketLength())
			assert.Equal(t, policy.DefaultLease, test.limit.LeaseLength())
			assert.Zero(t, test.limit.Kept())
			test.limit.Lease, test.limit.Headroom.Percent = time.Minute, 1
			assert.Equal(t, time.Minute, test.limit.LeaseLength())
			assert.Equal(t, int64(1), test.limit.Kept(), "rounded up")
		})
	}
	assert.InDelta(t, 1, minutely.PerSecond(), 0)
}

// A request may cost what the limit holds; and of a spacing as much as keeps the next
// start away for 30 years.
func TestMostCost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit policy.Limit
		most  int64
	}{
		{policy.Limit{Algorithm: policy.TokenBucket, Rate: minutely, Burst: 7}, 7},
		{policy.Limit{Algorithm: policy.FixedWindow, Rate: minutely}, 60},
		{policy.Limit{Algorithm: policy.Concurrency, Slots: 9}, 9},
		{policy.Limit{Algorithm: policy.Spacing, Rate: minutely}, policy.MaxBurst},
		{policy.Limit{Algorithm: policy.Spacing, Rate: policy.Rate{Count: 1, Period: 24 * time.Hour}}, 30 * 365},
		{policy.Limit{Algorithm: policy.Spacing, Rate: policy.Rate{Count: 1, Period: policy.MaxPeriod}}, 29},
	} {
		assert.Equal(t, test.most, test.limit.MostCost(), test.limit.String())
		cost := strconv.FormatInt(test.most+1, 10)
		p := policy.Policy{Name: "api", Limits: []policy.Limit{test.limit}}
		p.Limits[0].Cost = "cost"
		_, _, err := p.Draw(&p.Limits[0], map[string]string{"cost": cost})
		require.ErrorAs(t, err, new(*policy.NeverError))
	}
}

func TestActualCost(t *testing.T) {
	t.Parallel()
	p := policy.Policy{Name: "api", Limits: []policy.Limit{{Name: "points", Cost: "points"}, {Name: "calls"}}}
	for name, test := range map[string]struct {
		limit int
		value string // of the attribute; empty: it is missing
		cost  int64
		given bool
		err   string
	}{
		"a cost":              {0, "5", 5, true, ""},
		"nothing":             {0, "0", 0, true, ""},
		"the most":            {0, "100000000", policy.MaxBurst, true, ""},
		"more than that":      {0, "100000001", 0, false, `attribute "points" is "100000001", not a whole number from 0 to 100000000: limit "points"`},
		"less than nothing":   {0, "-1", 0, false, `is "-1", not a whole number`},
		"a word":              {0, "many", 0, false, `is "many", not a whole number`},
		"none":                {0, "", 0, false, ""},
		"a limit without any": {1, "many", 0, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attributes := map[string]string{}
			if test.value != "" {
				attributes["points"] = test.value
			}
			cost, given, err := p.ActualCost(&p.Limits[test.limit], attributes)
			assert.Equal(t, test.cost, cost)
			assert.Equal(t, test.given, given)
			if test.err == "" {
				require.NoError(t, err)
				return
			}
			var unfit *policy.AttributeError
			require.ErrorAs(t, err, &unfit)
			assert.ErrorContains(t, err, test.err)
		})
	}
}

// A field without a key could not be said in a policies file, and its changes would not be
// told.
func TestEveryFieldHasAKey(t *testing.T) {
	t.Parallel()
	keys := map[string]bool{}
	for _, of := range []any{policy.Config{}, policy.Policy{}, policy.Limit{}, policy.Route{}, policy.Upstream{}} {
		for field := range reflect.TypeOf(of).Fields() {
			key := reflect.TypeOf(of).Name() + "." + field.Tag.Get("key")
			isPolicyName := key == "Policy." && field.Name == "Name" // which is the key of its mapping
			assert.True(t, isPolicyName || field.Tag.Get("key") != "", "%T.%s", of, field.Name)
			assert.False(t, keys[key], "%s is there twice", key)
			keys[key] = true
		}
	}
}

func TestValidateUpdate(t *testing.T) {
	t.Parallel()
	with := func(name string, limit policy.Limit) *policy.Config {
		limit.Name, limit.Rate = "calls", minutely
		return &policy.Config{Policies: []policy.Policy{{Name: name, Limits: []policy.Limit{limit}}}}
	}
	before := with("api", policy.Limit{Algorithm: policy.TokenBucket})
	require.NoError(t, before.ValidateUpdate(with("api", policy.Limit{Algorithm: policy.TokenBucket, Burst: 5, Per: "user"})))
	require.NoError(t, before.ValidateUpdate(with("other", policy.Limit{Algorithm: policy.SlidingLog})))
	for kind, next := range map[string]policy.Limit{
		"sliding_log":     {Algorithm: policy.SlidingLog},
		"interval_bucket": {Algorithm: policy.TokenBucket, Refill: policy.RefillInterval},
	} {
		var invalid *policy.ConfigError
		require.ErrorAs(t, before.ValidateUpdate(with("api", next)), &invalid)
		require.Len(t, invalid.Problems, 1)
		assert.Equal(t, "policies.api.limits[0].algorithm", invalid.Problems[0].Path)
		assert.Contains(t, invalid.Problems[0].Message, "counted as a token_bucket can not be read as a "+kind)
	}
}

func TestCheckRated(t *testing.T) {
	t.Parallel()
	p := policy.Policy{Limits: []policy.Limit{
		{Name: "hourly", Algorithm: policy.FixedWindow, Rate: minutely}, {Name: "at-once", Algorithm: policy.Concurrency, Slots: 1},
	}}
	require.NoError(t, p.CheckRated("hourly"))
	require.EqualError(t, p.CheckRated("hourl"), `unknown limit "hourl"; did you mean "hourly"?`)
	require.EqualError(t, p.CheckRated("at-once"), `unknown limit "at-once"; use one of hourly`)
	p.Limits = p.Limits[1:]
	require.EqualError(t, p.CheckRated("at-once"), "the policy has no limit with a rate for a quota to correct")
}
