package producer_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// twoLimits is a policy with a limit for all and one for each installation that
// counts points.
func twoLimits() *policy.Config {
	return &policy.Config{
		Policies: []policy.Policy{{Name: "github", Limits: []policy.Limit{
			{Name: "all", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 10, Period: time.Second}},
			{Name: "hourly", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 100, Period: time.Hour}, Per: "installation", Cost: "points"},
		}}},
		Routes: []policy.Route{{Task: "http:request", Policy: "github"}},
	}
}

func TestEstimate(t *testing.T) {
	t.Parallel()
	one := map[string]string{"installation": "1"}
	two := map[string]string{"installation": "2", "points": "50"}
	for name, c := range map[string]struct {
		ones, twos, others int
		want               producer.Estimate
	}{
		"nothing":               {0, 0, 0, producer.Estimate{}},
		"unlimited tasks":       {0, 0, 5000, producer.Estimate{}},
		"within what they hold": {8, 0, 0, producer.Estimate{Policy: "github", Limit: "all", Cost: 8}},
		"the limit for all":     {20, 0, 0, producer.Estimate{Duration: time.Second, Policy: "github", Limit: "all", Cost: 20}},
		"the one per key": {101, 0, 0, producer.Estimate{
			Duration: 36 * time.Second, Policy: "github", Limit: "hourly", Key: "1", Cost: 101}},
		"cost counts, keys are apart": {90, 3, 0, producer.Estimate{
			Duration: 30 * time.Minute, Policy: "github", Limit: "hourly", Key: "2", Cost: 150}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			load := producer.NewLoad(twoLimits())
			for range c.ones {
				require.NoError(t, load.Add("http:request", one))
			}
			for range c.twos {
				require.NoError(t, load.Add("http:request", two))
			}
			for range c.others {
				require.NoError(t, load.Add("email:send", nil))
			}
			got, ok := load.Estimate()
			require.True(t, ok)
			if c.want.Duration == 0 { // the narrowest of counts that all fit is no matter
				got.Limit, got.Key, got.Cost = c.want.Limit, c.want.Key, c.want.Cost
			}
			assert.Equal(t, c.want, got)
		})
	}
}

func TestEstimateOfHugeNumbers(t *testing.T) {
	t.Parallel()
	config := twoLimits()
	config.Policies[0].Limits = []policy.Limit{{
		Name: "yearly", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 3, Period: 366 * 24 * time.Hour}, Burst: policy.MaxBurst, Cost: "points"}}
	load := producer.NewLoad(config)
	for range 3 {
		require.NoError(t, load.Add("http:request", map[string]string{"points": "100000000"}))
	}
	got, ok := load.Estimate()
	require.True(t, ok)
	assert.Equal(t, time.Duration(math.MaxInt64), got.Duration, "never a negative one")
}

func TestLoadRefusesWhatNoWaitWouldHelp(t *testing.T) {
	t.Parallel()
	load := producer.NewLoad(twoLimits())
	var missing *policy.AttributeError
	require.ErrorAs(t, load.Add("http:request", nil), &missing)
	assert.Equal(t, "installation", missing.Attribute)
	var bad *policy.AttributeError
	require.ErrorAs(t, load.Add("http:request", map[string]string{"installation": "1", "points": "0"}), &bad)
	assert.Equal(t, "points", bad.Attribute)
	var never *policy.NeverError
	require.ErrorAs(t, load.Add("http:request", map[string]string{"installation": "1", "points": "101"}), &never)
	assert.Equal(t, int64(100), never.Max)

	got, ok := load.Estimate()
	require.True(t, ok)
	assert.Zero(t, got, "a refused task counts nowhere, not even at the limits it would have passed")
}

func TestNoConfigNoEstimate(t *testing.T) {
	t.Parallel()
	load := producer.NewLoad(nil)
	require.NoError(t, load.Add("http:request", nil))
	_, ok := load.Estimate()
	assert.False(t, ok)
}
