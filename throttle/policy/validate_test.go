package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// validConfig has one of everything, and nothing wrong with it.
func validConfig() *policy.Config {
	return &policy.Config{
		Policies: []policy.Policy{
			{
				Name: "api.example-1_a",
				Limits: []policy.Limit{
					{Name: "hourly", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 5000, Period: time.Hour}, Burst: 100},
					{Name: "daily", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 9, Period: 24 * time.Hour}, Anchor: policy.AnchorFirst},
				},
				Lane: "tenant", MaxWait: time.Hour,
			},
			{
				Name:    "mail",
				Limits:  []policy.Limit{{Name: "hourly", Algorithm: policy.FixedWindow, Rate: policy.Rate{Count: 1, Period: time.Second}}},
				MaxWait: -1,
			},
		},
		Routes: []policy.Route{
			{Task: "http:request", Policy: "mail"},
			{Task: "http:", Policy: "mail"},
			{Task: "http:*", Policy: "api.example-1_a"},
			{Task: "*", Policy: "mail"},
		},
	}
}

func TestValidateAcceptsWhatIsRight(t *testing.T) {
	t.Parallel()
	config := validConfig()
	require.NoError(t, config.Validate())
	assert.Equal(t, validConfig(), config, "validation changes nothing")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	const (
		path  = "policies.mail"
		limit = "policies.mail.limits[0]"
	)
	of := func(change func(*policy.Limit)) func(*policy.Config) {
		return func(c *policy.Config) { change(&c.Policies[1].Limits[0]) }
	}
	bucket := func(count int64, period time.Duration, burst int64) func(*policy.Config) {
		return of(func(l *policy.Limit) {
			l.Algorithm, l.Rate, l.Burst = policy.TokenBucket, policy.Rate{Count: count, Period: period}, burst
		})
	}
	for name, test := range map[string]struct {
		change func(*policy.Config)
		want   string // empty: nothing is wrong
	}{
		"no policy": {func(c *policy.Config) { *c = policy.Config{Routes: c.Routes} },
			"policies: there is no policy"},
		"no name":       {func(c *policy.Config) { c.Policies[1].Name, c.Routes = "", nil }, `policies[""]: a policy needs a name`},
		"brace in name": {func(c *policy.Config) { c.Policies[1].Name, c.Routes = "a{b}", nil }, `policies["a{b}"]: "a{b}" can not be a name`},
		"newline in name": {func(c *policy.Config) { c.Policies[1].Name, c.Routes = "ab\n", nil },
			`policies["ab\n"]: "ab\n" can not be a name`},
		"policy twice":  {func(c *policy.Config) { c.Policies = append(c.Policies, c.Policies[1]) }, path + ": two policies have this name"},
		"no limits":     {func(c *policy.Config) { c.Policies[1].Limits = nil }, path + ".limits: a policy needs at least one limit"},
		"long max wait": {func(c *policy.Config) { c.Policies[1].MaxWait = time.Hour + 1 }, path + ".max_wait: 1h0m0.000000001s is too long"},

		"limit without name": {of(func(l *policy.Limit) { l.Name = "" }), limit + ".name: the limit has no name"},
		"reserved name":      {of(func(l *policy.Limit) { l.Name = "freeze" }), limit + `.name: "freeze" is reserved`},
		"space in limit":     {of(func(l *policy.Limit) { l.Name = "a b" }), limit + `.name: "a b" can not be a name`},
		"limit twice": {func(c *policy.Config) { c.Policies[1].Limits = append(c.Policies[1].Limits, c.Policies[1].Limits[0]) },
			path + `.limits[1].name: "hourly" is the name of limits[0] already`},

		"no algorithm":      {of(func(l *policy.Limit) { l.Algorithm = "" }), limit + ".algorithm: the algorithm is missing; use one of fixed_window, sliding_log, sliding_window, token_bucket, concurrency, spacing"},
		"unknown algorithm": {of(func(l *policy.Limit) { l.Algorithm = "tokenbucket" }), limit + `.algorithm: unknown algorithm "tokenbucket"; did you mean "token_bucket"?`},
		"burst on a window": {of(func(l *policy.Limit) { l.Burst = 5 }), limit + ".burst: burst is a key of token_bucket, but this limit is a fixed_window"},
		"bad burst on a window": {of(func(l *policy.Limit) { l.Burst = -5 }),
			limit + ".burst: burst is a key of token_bucket, but this limit is a fixed_window"},
		"anchor on a bucket": {of(func(l *policy.Limit) { l.Algorithm, l.Anchor = policy.TokenBucket, policy.AnchorClock }),
			limit + ".anchor: anchor is a key of fixed_window, but this limit is a token_bucket"},
		"unknown anchor":    {of(func(l *policy.Limit) { l.Anchor = "clok" }), limit + `.anchor: unknown anchor "clok"; did you mean "clock"?`},
		"anchor unheard of": {of(func(l *policy.Limit) { l.Anchor = "last" }), limit + `.anchor: unknown anchor "last"; use clock or first`},

		"no rate":         {of(func(l *policy.Limit) { l.Rate = policy.Rate{} }), limit + ".rate: the rate is missing"},
		"no count":        {of(func(l *policy.Limit) { l.Rate.Count = 0 }), limit + ".rate: 0/1s: the count must be at least 1"},
		"negative count":  {of(func(l *policy.Limit) { l.Rate.Count = -1 }), limit + ".rate: -1/1s: the count must be at least 1"},
		"highest count":   {of(func(l *policy.Limit) { l.Rate.Count = policy.MaxCount }), ""},
		"count too high":  {of(func(l *policy.Limit) { l.Rate.Count = policy.MaxCount + 1 }), limit + ".rate: 10000001/1s: the count must be at most 10000000"},
		"no period":       {of(func(l *policy.Limit) { l.Rate.Period = 0 }), limit + ".rate: 1/0s: the period must be longer than zero"},
		"negative period": {of(func(l *policy.Limit) { l.Rate.Period = -1 }), limit + ".rate: 1/-1ns: the period must be longer than zero"},
		"shortest period": {of(func(l *policy.Limit) { l.Rate.Period = policy.MinPeriod }), ""},
		"uneven period":   {of(func(l *policy.Limit) { l.Rate.Period = 1500 }), limit + ".rate: 1/1.5µs: the period must be whole microseconds"},
		"longest period":  {of(func(l *policy.Limit) { l.Rate.Period = policy.MaxPeriod }), ""},
		"period too long": {of(func(l *policy.Limit) { l.Rate.Period = policy.MaxPeriod + time.Second }), limit + ".rate: 1/8784h0m1s: the period must be at most 366d"},

		"default burst":      {bucket(10, time.Second, 0), ""},
		"default, slow rate": {bucket(1, policy.MaxPeriod, 0), ""},
		"negative burst":     {bucket(10, time.Second, -1), limit + ".burst: the burst is -1, but must be at least 1"},
		"highest burst":      {bucket(policy.MaxCount, time.Microsecond, policy.MaxBurst), ""},
		"burst too high":     {bucket(policy.MaxCount, time.Microsecond, policy.MaxBurst+1), limit + ".burst: the burst is 100000001, but must be at most 100000000"},
		"30 years to refill": {bucket(1, 24*time.Hour, 30*365), ""},
		"over 30 years to refill": {bucket(1, 24*time.Hour, 30*365+1),
			limit + ".burst: a bucket of 10951 needs more than 30 years to fill up at 1/24h0m0s; write at most 10950, or a faster rate"},
		"product beyond 64 bits": {bucket(3, policy.MaxPeriod, policy.MaxBurst),
			limit + ".burst: a bucket of 100000000 needs more than 30 years to fill up at 3/8784h0m0s; write at most 89, or a faster rate"},

		"no task":           {func(c *policy.Config) { c.Routes[1].Task = "" }, "routes[1].task: the task is missing"},
		"star in the midst": {func(c *policy.Config) { c.Routes[1].Task = "a*b" }, `routes[1].task: "a*b" has a * before its end`},
		"two stars":         {func(c *policy.Config) { c.Routes[1].Task = "a**" }, `routes[1].task: "a**" has a * before its end`},
		"route twice": {func(c *policy.Config) { c.Routes[1].Task = "http:request" },
			`routes[1].task: "http:request" is the task of routes[0] already`},
		"type after its prefix": {func(c *policy.Config) { c.Routes[0].Task = "http:*" },
			`routes[1].task: no task gets to "http:", because routes[0] takes all of "http:*" first` + "\n" +
				`routes[2].task: "http:*" is the task of routes[0] already`},
		"prefix after a shorter": {func(c *policy.Config) { c.Routes = []policy.Route{{"h*", "mail"}, {"http:*", "mail"}} },
			`routes[1].task: no task gets to "http:*", because routes[0] takes all of "h*" first`},
		"prefix after its type": {func(c *policy.Config) { c.Routes = []policy.Route{{"h", "mail"}, {"h*", "mail"}} }, ""},
		"no policy for a route": {func(c *policy.Config) { c.Routes[1].Policy = "" }, "routes[1].policy: the policy is missing"},
		"misspelt policy":       {func(c *policy.Config) { c.Routes[1].Policy = "mial" }, `routes[1].policy: unknown policy "mial"; did you mean "mail"?`},
		"policy unheard of":     {func(c *policy.Config) { c.Routes[1].Policy = "stripe" }, `routes[1].policy: unknown policy "stripe"; use api.example-1_a or mail`},
		"several things at once": {func(c *policy.Config) { c.Policies[1].Limits[0] = policy.Limit{} },
			limit + ".name: the limit has no name\n" + limit + ".algorithm: the algorithm is missing\n" + limit + ".rate: the rate is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := validConfig()
			test.change(config)
			err := config.Validate()
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			var invalid *policy.ConfigError
			require.ErrorAs(t, err, &invalid)
			assert.Empty(t, invalid.File)
			lines, wanted := strings.Split(err.Error(), "\n"), strings.Split(test.want, "\n")
			require.Len(t, lines, len(wanted), err.Error())
			for i, want := range wanted {
				assert.True(t, strings.HasPrefix(lines[i], want), "%s\nshould begin with\n%s", lines[i], want)
				assert.Zero(t, invalid.Problems[i].Line)
			}
		})
	}
}

func TestValidateNil(t *testing.T) {
	t.Parallel()
	var config *policy.Config
	require.ErrorContains(t, config.Validate(), "there is no policy")
}
