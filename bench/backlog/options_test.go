package backlog

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	o, err := command.Parse([]string{"-scenarios", "tenants, one-lane", "-rate", "100/2s", "-tasks", "1000", "-rounds", "3"},
		func(name string) string {
			return map[string]string{"RAMPMETER_ROUNDS": "5", "RAMPMETER_WORKERS": "4"}[name]
		})
	require.NoError(t, err)
	assert.Equal(t, 3, o.rounds, "a flag wins over its variable")
	assert.Equal(t, 4, o.workers)
	require.Len(t, o.chosen, 2)
	assert.Equal(t, "tenants", o.chosen[0].name)
	assert.Equal(t, 1000, o.chosen[0].tasks())
	assert.Equal(t, lane{"big", 820}, o.chosen[0].lanes[0], "the small ones stay small")
	assert.Equal(t, 1000, o.chosen[1].tasks())
	assert.Equal(t, limit{Algorithm: policy.TokenBucket, Count: 100, Period: 2 * time.Second, Burst: 10}, o.chosen[1].limit)
	assert.Equal(t, 30*time.Second+2*o.chosen[1].ideal(), o.timeoutOf(o.chosen[1]))

	o, err = command.Parse([]string{"-burst", "7"}, none)
	require.NoError(t, err)
	for _, s := range o.chosen {
		assert.Equal(t, s.limit.Algorithm == policy.TokenBucket, s.limit.Burst == 7, s.name)
	}

	_, err = command.Parse([]string{"-h"}, none)
	require.ErrorIs(t, err, flag.ErrHelp)
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no such flag":     {[]string{"-fast"}, "-fast"},
		"an argument":      {[]string{"tenants"}, `"tenants"`},
		"no such scenario": {[]string{"-scenarios", "one-lane,two"}, `there is no "two", only one-lane, tenants`},
		"too many":         {[]string{"-tasks", "1000001"}, "-tasks is 1000001"},
		"too few":          {[]string{"-tasks", "-1"}, "-tasks is -1"},
		"two sizes":        {[]string{"-quick", "-tasks", "5"}, "-quick and -tasks"},
		"no rounds":        {[]string{"-rounds", "0"}, "-rounds is 0"},
		"no workers":       {[]string{"-workers", "0"}, "-workers is 0"},
		"no tasks at once": {[]string{"-concurrency", "0"}, "-concurrency is 0"},
		"back in tokens":   {[]string{"-burst", "-1"}, "-burst is -1"},
		"no rate":          {[]string{"-rate", "fast"}, "-rate: "},
		"back in time":     {[]string{"-for", "-1s"}, "-for"},
		"no regexp":        {[]string{"-only", "("}, "-only: "},
		"nobody":           {[]string{"-only", "sidekiq"}, `-only: no contender matches "sidekiq"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := command.Parse(tt.args, none)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestHelpNamesEveryScenario(t *testing.T) {
	t.Parallel()
	var help strings.Builder
	Run(t.Context(), []string{"-h"}, none, &help, io.Discard)
	for _, s := range scenarios() {
		assert.Contains(t, help.String(), s.name)
	}
}

func TestQuickLeavesEveryLimitSomethingToDo(t *testing.T) {
	t.Parallel()
	o, err := command.Parse([]string{"-quick"}, none)
	require.NoError(t, err)
	for i, s := range o.chosen {
		assert.Positive(t, s.ideal(), s.name)
		assert.Less(t, s.tasks(), scenarios()[i].tasks(), s.name)
	}
}

func TestIdeal(t *testing.T) {
	t.Parallel()
	want := map[string]time.Duration{
		"one-lane":     29900 * time.Millisecond,
		"tenants":      30800 * time.Millisecond,
		"per-tenant":   7 * time.Second,
		"window":       20 * time.Second,
		"last-attempt": 19900 * time.Millisecond,
		"slots":        59800 * time.Millisecond,
		"tenant-slots": 19800 * time.Millisecond,
	}
	for _, s := range scenarios() {
		assert.Equal(t, want[s.name], s.ideal(), s.name)
	}
}

// What Rampmeter is given is a policies file as its users write it.
func TestPoliciesFiles(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios() {
		for _, c := range contenders() {
			if c.kind != rampmeter {
				continue
			}
			file := c.policiesFile(s.limit)
			config, err := policy.Parse("policies.yaml", []byte(file))
			require.NoError(t, err, file)
			p := config.PolicyFor(taskType)
			require.NotNil(t, p)
			got := p.Limits[0]
			if s.limit.Algorithm == policy.Concurrency {
				assert.EqualValues(t, s.limit.Count, got.Slots)
			} else {
				assert.Equal(t, policy.Rate{Count: int64(s.limit.Count), Period: s.limit.Period}, got.Rate)
			}
			assert.Equal(t, s.limit.Algorithm, got.Algorithm)
			assert.EqualValues(t, s.limit.Burst, got.Burst)
			assert.Equal(t, s.limit.PerTenant, got.Per == tenantAttribute)
			assert.Equal(t, c.parks(), p.Lane == tenantAttribute)
		}
	}
}

func TestBullMQIsLeftOutWithTheReason(t *testing.T) {
	t.Setenv("PATH", "")
	b := &bench{options: &options{}, Session: &harness.Session{Progress: &harness.Progress{}}}
	c := contenderOf("BullMQ")
	assert.Equal(t, "there is no node", b.unfit(t.Context(), c, scenarioOf("one-lane")))
	assert.Contains(t, b.unfit(t.Context(), c, scenarioOf("per-tenant")), "free edition")
	assert.Empty(t, b.unfit(t.Context(), contenderOf("retry-after"), scenarioOf("one-lane")))
}

func TestFailuresEndTheCommandBadly(t *testing.T) {
	t.Parallel()
	r := &report{Scenarios: []*section{{Name: "one-lane", Results: []*result{{Name: "BullMQ"}}}}}
	require.NoError(t, r.failed())
	r.Scenarios[0].Results[0].Error = errors.New("gone").Error()
	require.EqualError(t, r.failed(), "one-lane, BullMQ: gone")
}
