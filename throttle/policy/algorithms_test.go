package policy_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

func TestReadFileWithEveryKey(t *testing.T) {
	t.Parallel()
	config, err := policy.ReadFile(filepath.Join("testdata", "every_key.yaml"))
	require.NoError(t, err)
	second := policy.Rate{Count: 1, Period: time.Second}
	assert.Equal(t, &policy.Config{
		Policies: []policy.Policy{
			{
				Name: "all.keys",
				Limits: []policy.Limit{
					{Name: "fixed", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 60, Period: time.Minute}, Anchor: policy.AnchorFirst, Per: "tenant", Cost: "points", Headroom: policy.Headroom{Percent: 10}},
					{Name: "log", Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: 10_000, Period: 24 * time.Hour}, Per: "tenant", Cost: "points"},
					{Name: "sliding", Algorithm: policy.SlidingWindow, Rate: policy.Rate{Count: 100, Period: 15 * time.Minute}, Precision: 30 * time.Second, Per: "tenant", Cost: "points"},
					{Name: "bucket", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 5000, Period: time.Hour}, Burst: 100, Refill: policy.RefillInterval, Per: "tenant", Cost: "points"},
					{Name: "running", Algorithm: policy.Concurrency, Slots: 100, Lease: 90 * time.Second, Per: "tenant", Cost: "points", Headroom: policy.Headroom{Tokens: 5}},
					{Name: "spaced", Algorithm: policy.Spacing, Rate: policy.Rate{Count: 3, Period: time.Second}, Per: "tenant", Cost: "points"},
				},
				Lane: "tenant", Weights: map[string]int64{"acme": 3}, Weight: "plan", MaxWait: 500 * time.Millisecond, MaxDefer: 24 * time.Hour, Overload: policy.OverloadDegrade,
				Upstream: &policy.Upstream{
					API: policy.APIOpenAI, Headroom: 5, MaxFreeze: 2 * time.Hour,
					Quotas: map[string]string{"requests": "sliding", "tokens": "bucket"},
				},
			},
			{
				Name: "no-keys",
				Limits: []policy.Limit{
					{Name: "fixed", Algorithm: policy.FixedWindow, Rate: second},
					{Name: "log", Algorithm: policy.SlidingLog, Rate: second},
					{Name: "sliding", Algorithm: policy.SlidingWindow, Rate: second},
					{Name: "bucket", Algorithm: policy.TokenBucket, Rate: second},
					{Name: "running", Algorithm: policy.Concurrency, Slots: 1},
					{Name: "spaced", Algorithm: policy.Spacing, Rate: second},
				},
				Upstream: &policy.Upstream{API: policy.APIAuto},
			},
		},
		Routes: []policy.Route{{Task: "http:request", Policy: "all.keys"}, {Task: "*", Policy: "no-keys"}},
	}, config)
}

// algorithmKeys says again, in the contract's words, which keys each algorithm
// has; the first is the one it needs.
var algorithmKeys = map[policy.Algorithm][]string{
	policy.FixedWindow:   {"rate: 1/s", "anchor: clock"},
	policy.SlidingLog:    {"rate: 1/s"},
	policy.SlidingWindow: {"rate: 1/s", "precision: 50ms"},
	policy.TokenBucket:   {"rate: 1/s", "burst: 9", "refill: smooth"},
	policy.Concurrency:   {"slots: 3", "lease: 1m"},
	policy.Spacing:       {"rate: 1/s"},
}

func TestParseMissingKey(t *testing.T) {
	t.Parallel()
	for algorithm, own := range algorithmKeys {
		t.Run(string(algorithm), func(t *testing.T) {
			t.Parallel()
			needed, _, _ := strings.Cut(own[0], ":")
			missing := map[string]string{
				"rate":  "the rate is missing; write tokens per period, as in 5000/1h",
				"slots": "the slots are missing; write how many tasks may run at once, as in slots: 100",
			}[needed]

			_, err := policy.Parse("p.yaml", []byte(limitKeys("name: a", "algorithm: "+string(algorithm))))
			require.EqualError(t, err, "p.yaml:4: policies.mail.limits[0]."+needed+": "+missing)
			_, err = policy.Parse("p.yaml", []byte(limitKeys("name: a", "algorithm: "+string(algorithm), needed+":")))
			require.EqualError(t, err, "p.yaml:6: policies.mail.limits[0]."+needed+": "+missing)
		})
	}
}

func TestMisplacedKey(t *testing.T) {
	t.Parallel()
	set := map[string]func(*policy.Limit){
		"rate: 1/s":       func(l *policy.Limit) { l.Rate = policy.Rate{Count: 1, Period: time.Second} },
		"anchor: clock":   func(l *policy.Limit) { l.Anchor = policy.AnchorClock },
		"precision: 50ms": func(l *policy.Limit) { l.Precision = 50 * time.Millisecond },
		"burst: 9":        func(l *policy.Limit) { l.Burst = 9 },
		"refill: smooth":  func(l *policy.Limit) { l.Refill = policy.RefillSmooth },
		"slots: 3":        func(l *policy.Limit) { l.Slots = 3 },
		"lease: 1m":       func(l *policy.Limit) { l.Lease = time.Minute },
	}
	owners := map[string]string{
		"rate":      "fixed_window, sliding_log, sliding_window, token_bucket and spacing",
		"anchor":    "fixed_window",
		"precision": "sliding_window",
		"burst":     "token_bucket",
		"refill":    "token_bucket",
		"slots":     "concurrency",
		"lease":     "concurrency",
	}
	has := map[policy.Algorithm]string{
		policy.FixedWindow:   "rate and anchor",
		policy.SlidingLog:    "rate",
		policy.SlidingWindow: "rate and precision",
		policy.TokenBucket:   "rate, burst and refill",
		policy.Concurrency:   "slots and lease",
		policy.Spacing:       "rate",
	}
	for algorithm, own := range algorithmKeys {
		for line, assign := range set {
			t.Run(fmt.Sprintf("%s %s", algorithm, line), func(t *testing.T) {
				t.Parallel()
				lines := []string{"name: a", "algorithm: " + string(algorithm), own[0]}
				limit := policy.Limit{Name: "a", Algorithm: algorithm}
				set[own[0]](&limit)
				if line != own[0] {
					lines = append(lines, line)
					assign(&limit)
				}
				config := &policy.Config{Policies: []policy.Policy{{Name: "mail", Limits: []policy.Limit{limit}}}}
				parsed, err := policy.Parse("p.yaml", []byte(limitKeys(lines...)))

				if slices.Contains(own, line) {
					require.NoError(t, err)
					assert.Equal(t, config, parsed)
					require.NoError(t, config.Validate())
					return
				}
				key, _, _ := strings.Cut(line, ":")
				want := fmt.Sprintf("policies.mail.limits[0].%s: %s is a key of %s, but this limit is a %s, which has %s; remove it or change the algorithm",
					key, key, owners[key], algorithm, has[algorithm])
				require.EqualError(t, err, "p.yaml:7: "+want)
				require.EqualError(t, config.Validate(), want)
			})
		}
	}
}

func TestParseAlgorithmKeys(t *testing.T) {
	t.Parallel()
	const (
		precision = "algorithm: sliding_window"
		slots     = "algorithm: concurrency"
	)
	for name, test := range map[string]struct {
		lines []string // of a limit, after its name
		want  string   // the beginnings of the messages, from the line on
	}{
		"log too long":      {[]string{"algorithm: sliding_log", "rate: 10001/d"}, "6:rate: 10001/24h0m0s: the count of a sliding_log must be at most 10000, because it remembers each start; use a sliding_window"},
		"unknown refill":    {[]string{"algorithm: token_bucket", "rate: 1/s", "refill: at_once"}, `7:refill: unknown refill "at_once"; use smooth or interval`},
		"misspelt refill":   {[]string{"algorithm: token_bucket", "rate: 1/s", "refill: intervall"}, `7:refill: unknown refill "intervall"; did you mean "interval"?`},
		"empty refill":      {[]string{"algorithm: token_bucket", "rate: 1/s", "refill:"}, "7:refill: the value is empty"},
		"precision is text": {[]string{precision, "rate: 1/s", "precision: fine"}, `7:precision: "fine": there is no duration`},
		"precision no unit": {[]string{precision, "rate: 1/s", "precision: 50"}, `7:precision: "50": the duration has no unit`},
		"zero precision":    {[]string{precision, "rate: 1/s", "precision: 0s"}, "7:precision: the precision is 0s, but must be longer than zero; leave it out"},
		"fine precision":    {[]string{precision, "rate: 1/s", "precision: 1ns"}, "7:precision: the precision is 1ns, but must be whole microseconds"},
		"uneven precision":  {[]string{precision, "rate: 1/1m", "precision: 7s"}, "7:precision: a precision of 7s does not divide the period of 1m0s; write one that does, as in 7.5s"},
		"no even default":   {[]string{precision, "rate: 1/41us"}, "4:precision: the period of 41µs can not be cut into 20 equal buckets of whole microseconds; add a precision that divides it, as in 1µs"},
		"even after all":    {[]string{precision, "rate: 1/x", "precision: 7s"}, `6:rate: "1/x": the unit "x" is unknown`},
		"zero slots":        {[]string{slots, "slots: 0"}, "6:slots: the slots are 0, but must be at least 1"},
		"fractional slots":  {[]string{slots, "slots: 1.5"}, `6:slots: "1.5" is not a whole number`},
		"slots are a list":  {[]string{slots, "slots: [1]"}, "6:slots: must be a single value, but it is a list"},
		"slots overflow":    {[]string{slots, "slots: 99999999999999999999"}, "6:slots: the slots are 9223372036854775807, but must be at most 100000"},
		"zero lease":        {[]string{slots, "slots: 1", "lease: 0"}, "7:lease: the lease is 0s, but must be at least 1s, for its renewals to arrive in time; leave it out for 30s"},
		"empty lease":       {[]string{slots, "slots: 1", "lease:"}, "7:lease: the value is empty"},
		"lease no unit":     {[]string{slots, "slots: 1", "lease: 30"}, `7:lease: "30": the duration has no unit; add one`},
		"lease of days":     {[]string{slots, "slots: 1", "lease: 2d"}, "7:lease: the lease is 48h0m0s, but must be at most 24h"},
		"rate for slots":    {[]string{slots, "rate: 1/s"}, "4:slots: the slots are missing\n6:rate: rate is a key of fixed_window, "},
		"misspelt, slots":   {[]string{"algorithm: concurency", "slots: 3"}, `5:algorithm: unknown algorithm "concurency"; did you mean "concurrency"?`},
		"misspelt, lease":   {[]string{"algorithm: concurency", "lease: 1m"}, `5:algorithm: unknown algorithm "concurency"; did you mean "concurrency"?`},
		"bad under unknown": {[]string{"algorithm: leaky", "rate: 1/s", "slots: -1"}, "5:algorithm: unknown algorithm \"leaky\"; use one of fixed_window, sliding_log, sliding_window, token_bucket, concurrency, spacing\n7:slots: the slots are -1"},
		"swapped letters":   {[]string{"algorithm: fixed_window", "rate: 1/s", "cots: points"}, `7:cots: unknown key "cots"; did you mean "cost"?`},
		"nearly new keys": {[]string{slots, "slot: 0", "leese: 1ms"}, "6:slot: unknown key \"slot\"; did you mean \"slots\"?\n6:slots: the slots are 0\n" +
			"7:leese: unknown key \"leese\"; did you mean \"lease\"?\n7:lease: the lease is 1ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := policy.Parse("p.yaml", []byte(limitKeys(append([]string{"name: a"}, test.lines...)...)))
			var invalid *policy.ConfigError
			require.ErrorAs(t, err, &invalid)
			got, want := strings.Split(err.Error(), "\n"), strings.Split(test.want, "\n")
			require.Len(t, got, len(want), err.Error())
			for i := range want {
				line, rest, _ := strings.Cut(want[i], ":")
				assert.True(t, strings.HasPrefix(got[i], "p.yaml:"+line+": policies.mail.limits[0]."+rest), "%s\nshould begin with line %s", got[i], want[i])
			}
		})
	}
}

func TestValidateAlgorithmKeys(t *testing.T) {
	t.Parallel()
	log := func(count int64) policy.Limit {
		return policy.Limit{Algorithm: policy.SlidingLog, Rate: policy.Rate{Count: count, Period: time.Hour}}
	}
	sliding := func(period, precision time.Duration) policy.Limit {
		return policy.Limit{Algorithm: policy.SlidingWindow, Rate: policy.Rate{Count: 1, Period: period}, Precision: precision}
	}
	slots := func(slots int64, lease time.Duration) policy.Limit {
		return policy.Limit{Algorithm: policy.Concurrency, Slots: slots, Lease: lease}
	}
	spaced := func(count int64, period time.Duration) policy.Limit {
		return policy.Limit{Algorithm: policy.Spacing, Rate: policy.Rate{Count: count, Period: period}}
	}
	keeping, bursting := spaced(5, time.Second), spaced(5, time.Second)
	keeping.Headroom.Percent, bursting.Burst = 10, 5
	const us = time.Microsecond
	for name, test := range map[string]struct {
		limit policy.Limit
		want  string // empty: nothing is wrong
	}{
		"closest starts":      {spaced(1, us), ""},
		"third of a second":   {spaced(3, time.Second), ""},
		"starts too close":    {spaced(1_000_001, time.Second), "rate: 1000001/1s: the starts of a spacing must be at least 1us apart; write a slower rate"},
		"spacing, headroom":   {keeping, "headroom: a spacing holds no tokens that could be kept for urgent tasks; remove the headroom"},
		"spacing with bursts": {bursting, "burst: burst is a key of token_bucket, but this limit is a spacing, which has rate; remove it"},

		"longest log":  {log(policy.MaxLogCount), ""},
		"log too long": {log(policy.MaxLogCount + 1), "rate: 10001/1h0m0s: the count of a sliding_log must be at most 10000"},

		"default precision":     {sliding(time.Hour, 0), ""},
		"default, shortest":     {sliding(us, 0), ""},
		"default, below twenty": {sliding(19*us, 0), ""},
		"default, longest":      {sliding(policy.MaxPeriod, 0), ""},
		"default, uneven":       {sliding(41*us, 0), "precision: the period of 41µs can not be cut into 20 equal buckets"},
		"one bucket":            {sliding(time.Hour, time.Hour), ""},
		"a thousand buckets":    {sliding(time.Second, time.Millisecond), ""},
		"buckets of 1us":        {sliding(1000*us, us), ""},
		"1001 buckets":          {sliding(1001*us, us), "precision: a precision of 1µs cuts the period of 1.001ms into 1001 buckets, but a decision may read at most 1000; write a longer one, as in 7µs"},
		"far too many buckets":  {sliding(time.Hour, time.Millisecond), "precision: a precision of 1ms cuts the period of 1h0m0s into 3600000 buckets, but a decision may read at most 1000; write a longer one, as in 3.6s"},
		"does not divide":       {sliding(time.Second, 300*time.Millisecond), "precision: a precision of 300ms does not divide the period of 1s; write one that does, as in 250ms"},
		"longer than period":    {sliding(time.Second, time.Minute), "precision: a precision of 1m0s does not divide the period of 1s; write one that does, as in 1s"},
		"uneven and too many":   {sliding(time.Second, 7*us), "precision: a precision of 7µs does not divide the period of 1s; write one that does, as in 1ms"},
		"prime period":          {sliding(1000003*us, 50*time.Millisecond), "precision: a precision of 50ms does not divide the period of 1.000003s; write one that does, as in 1.000003s"},
		"negative precision":    {sliding(time.Second, -us), "precision: the precision is -1µs, but must be longer than zero"},
		"half a microsecond":    {sliding(time.Second, 500), "precision: the precision is 500ns, but must be whole microseconds"},
		"precision, no rate":    {sliding(0, us), "rate: 1/0s: the period must be longer than zero"},

		"one slot":         {slots(1, 0), ""},
		"most slots":       {slots(policy.MaxSlots, 0), ""},
		"too many slots":   {slots(policy.MaxSlots+1, 0), "slots: the slots are 100001, but must be at most 100000"},
		"negative slots":   {slots(-1, 0), "slots: the slots are -1, but must be at least 1"},
		"no slots":         {slots(0, 0), "slots: the slots are missing"},
		"shortest lease":   {slots(1, policy.MinLease), ""},
		"lease too short":  {slots(1, policy.MinLease-us), "lease: the lease is 999.999ms, but must be at least 1s"},
		"negative lease":   {slots(1, -time.Hour), "lease: the lease is -1h0m0s, but must be at least 1s"},
		"longest lease":    {slots(1, policy.MaxLease), ""},
		"lease too long":   {slots(1, policy.MaxLease+us), "lease: the lease is 24h0m0.000001s, but must be at most 24h"},
		"uneven lease":     {slots(1, policy.MinLease+1), "lease: the lease is 1.000000001s, but must be whole microseconds"},
		"slots, with cost": {policy.Limit{Algorithm: policy.Concurrency, Slots: 9, Per: "tenant", Cost: "points"}, ""},

		"unknown refill": {policy.Limit{Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 1, Period: time.Second}, Refill: "x"}, `refill: unknown refill "x"; use smooth or interval`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.limit.Name = "a"
			config := &policy.Config{Policies: []policy.Policy{{Name: "p", Limits: []policy.Limit{test.limit}}}}
			err := config.Validate()
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), "policies.p.limits[0]."+test.want), "%s\nshould begin with\n%s", err, test.want)
			assert.NotContains(t, err.Error(), "\n", "one mistake, one message")
			if _, advice, found := strings.Cut(err.Error(), "as in "); found && test.limit.Algorithm == policy.SlidingWindow {
				better, err := time.ParseDuration(advice)
				require.NoError(t, err)
				config.Policies[0].Limits[0].Precision = better
				require.NoError(t, config.Validate(), "the advice is right")
			}
		})
	}
}

func TestMostLimits(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	lines.WriteString("policies:\n  mail:\n    lane: a\n    limits:\n")
	for i := range policy.MaxLimits {
		fmt.Fprintf(&lines, "      - {name: l%d, algorithm: concurrency, slots: 1}\n", i)
	}
	_, err := policy.Parse("p.yaml", []byte(lines.String()))
	require.NoError(t, err)
	lines.WriteString("      - {name: more, algorithm: concurrency, slots: 1}\n")
	_, err = policy.Parse("p.yaml", []byte(lines.String()))
	require.EqualError(t, err, "p.yaml:4: policies.mail.limits: there are 33 limits, but a policy has at most 32, because every call decides them all; "+
		"remove some, or give those of another upstream a policy of their own")
}
