package policy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

func TestReadFileOfTheContract(t *testing.T) {
	t.Parallel()
	config, err := policy.ReadFile(filepath.Join("testdata", "sample.yaml"))
	require.NoError(t, err)
	assert.Equal(t, &policy.Config{
		Policies: []policy.Policy{{
			Name: "github",
			Limits: []policy.Limit{{
				Name:      "hourly",
				Algorithm: policy.TokenBucket,
				Rate:      policy.Rate{Count: 5000, Period: time.Hour},
				Burst:     100,
				Per:       "installation",
				Cost:      "points",
			}},
			Lane:    "installation",
			MaxWait: time.Second,
		}},
		Routes: []policy.Route{{Task: "http:request", Policy: "github"}},
	}, config)
}

func TestReadFileNamesAllMistakes(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "five_mistakes.yaml")
	config, err := policy.ReadFile(path)
	assert.Nil(t, config)
	require.EqualError(t, err, strings.Join([]string{
		path + `:6: policies.github.limits[0].algorithm: unknown algorithm "tokenbucket"; did you mean "token_bucket"?`,
		path + `:8: policies.github.limits[0].brust: unknown key "brust"; did you mean "burst"?`,
		path + `:11: policies.github.limits[1].rate: "100/min": the unit "min" is unknown; write m`,
		path + `:12: policies.github.max_wait: 2h0m0s is too long for a worker to hold a task; write at most 1h: a task whose slot is further off is deferred, at no cost`,
		path + `:15: routes[0].policy: unknown policy "githb"; did you mean "github"?`,
	}, "\n"))
	var invalid *policy.ConfigError
	require.ErrorAs(t, err, &invalid)
	assert.Len(t, invalid.Problems, 5)
}

func TestReadFileUnreadable(t *testing.T) {
	t.Parallel()
	_, err := policy.ReadFile(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "none.yaml")

	_, err = policy.ReadFile(t.TempDir())
	require.ErrorContains(t, err, "is a directory")

	large := filepath.Join(t.TempDir(), "large.yaml")
	require.NoError(t, os.WriteFile(large, make([]byte, 2<<20), 0o600))
	_, err = policy.ReadFile(large)
	require.EqualError(t, err, large+": the file is larger than 1048576 bytes; is it a policies file?")
}

// mail is a policy that is right, for files that are about something else.
const mail = `policies:
  mail:
    limits:
      - {name: a, algorithm: fixed_window, rate: 1/s}
`

// limitKeys puts keys, one a line, into a limit, from line 4 on.
func limitKeys(keys ...string) string {
	return "policies:\n  mail:\n    limits:\n      - " + strings.Join(keys, "\n        ") + "\n"
}

func TestParseProblems(t *testing.T) {
	t.Parallel()
	const (
		fixed  = "algorithm: fixed_window"
		bucket = "algorithm: token_bucket"
		limit  = " policies.mail.limits[0]"
	)
	for name, test := range map[string]struct {
		file string
		want string // the beginning of each line after the file's name
	}{
		"empty file":      {"", `1: the file is empty; begin with "policies:"`},
		"only a comment":  {"# soon\n", "1: the file is empty"},
		"only a document": {"---\n", "1: the file is empty"},
		"not a mapping":   {"\n- a\n", "1: must be a mapping with the keys policies, routes, but it is a list"},
		"no policies":     {"\nroutes: []\n", "1: policies: there is no policy"},
		"empty policies":  {"\npolicies:\n", "2: policies: must be a mapping from policy names to policies, but it is empty"},
		"policies listed": {"\npolicies: []\nroutes:\n  - {task: a, policy: b}\n", "2: policies: must be a mapping from policy names to policies, but it is a list"},
		"two documents":   {mail + "---\n" + mail, "5: a second YAML document begins here"},
		"binary":          {mail + "\xff", "5: this is not valid YAML: invalid leading UTF-8"},

		"bad indentation":      {"policies:\n  mail:\n    limits: []\n   lane: a\n", "4: this is not valid YAML: did not find expected key; check this line's indentation"},
		"indented too far":     {"policies:\n  mail:\n    lane: a\n      max_wait: 1s\n", "4: this is not valid YAML: mapping values are not allowed in this context; check the indentation"},
		"tab":                  {"policies:\n\tmail:\n", "2: this is not valid YAML: found character that cannot start any token; indent with spaces"},
		"no colon":             {"policies:\n  mail:\n    limits: []\n    lane\n    max_wait: 1s\n", "4: this is not valid YAML: could not find expected ':'"},
		"bare star":            {mail + "routes:\n  - task: *\n    policy: mail\n", `6: this is not valid YAML: did not find expected alphabetic or numeric character; put a value that begins with * or & in quotes`},
		"undefined anchor":     {mail + "routes:\n  - task: *all\n    policy: mail\n", `6: this is not valid YAML: unknown anchor 'all' referenced; put a value that begins with *`},
		"open quote":           {"policies:\n  mail:\n    lane: \"x\n    max_wait: 1s\n", "3: this is not valid YAML: found unexpected end of stream; a quoted value does not end"},
		"open bracket":         {"policies:\n  mail:\n    limits: [{name: a}\n    lane: x\n", "3: this is not valid YAML: did not find expected ',' or ']'; a bracket"},
		"error in the second":  {mail + "---\na: 'x\n", "6: this is not valid YAML: found unexpected end of stream"},
		"problem on line one":  {"a: b: c", "1: this is not valid YAML: mapping values"},
		"list not yet at end":  {"policies:\n  a:\n    limits:\n      - name: x\n       rate: 1/s\n", "5: this is not valid YAML: did not find expected '-' indicator"},
		"misspelt key":         {"polices:\n  mail:\n    limits: []\n", "1: polices: unknown key \"polices\"; did you mean \"policies\"?\n3: policies.mail.limits: a policy needs"},
		"key unheard of":       {mail + "foo: 1\n", `5: foo: unknown key "foo"; the file has only policies, routes`},
		"key twice":            {mail + "    lane: a\n    lane: b\n", "6: policies.mail.lane: the key is in line 5 already"},
		"policy twice":         {mail + "  mail: {}\n", "5: policies.mail: the key is in line 2 already"},
		"key that is a list":   {mail + "  [a]: 1\n", "5: policies: a key must be a plain word, but here it is a list"},
		"key of elsewhere":     {mail + "    rate: 1/s\n", "5: policies.mail.rate: rate is a key of a limit, but a policy has only limits, lane, weights, weight, max_wait, max_defer, overload, upstream"},
		"merge of a text":      {mail + "    <<: a\n", "5: policies.mail[\"<<\"]: << merges mappings, such as *defaults, but here is the text \"a\""},
		"weight of zero":       {mail + "    lane: a\n    weights: {big: 0}\n", "6: policies.mail.weights.big: the weight is 0, but must be from 1 to 1000"},
		"weights, no lane":     {mail + "    weights: {big: 2}\n", "5: policies.mail.weights: weights are those of lanes, but the policy has no lane"},
		"weight, no lane":      {mail + "    weight: plan\n", "5: policies.mail.weight: a weight is a lane's, but the policy has no lane"},
		"empty option":         {mail + "    lane:\n", "5: policies.mail.lane: the value is empty"},
		"option is a list":     {mail + "    lane: [a]\n", "5: policies.mail.lane: must be a single value, but it is a list"},
		"policy is a list":     {"policies:\n  mail:\n  - name: a\n", "2: policies.mail: must be a mapping with the keys limits, lane, weights, weight, max_wait, max_defer, overload, upstream, but it is a list"},
		"empty policy":         {"policies:\n  mail:\n", "2: policies.mail: must be a mapping with the keys limits, lane, weights, weight, max_wait, max_defer, overload, upstream, but it is empty"},
		"no limits":            {"policies:\n  mail:\n    lane: a\n", "2: policies.mail.limits: a policy needs at least one limit"},
		"limits are a mapping": {"policies:\n  mail:\n    limits:\n      a: {rate: 1/s}\n", `3: policies.mail.limits: must be a list of limits, each starting with "- name:", but it is a mapping`},
		"limit is a text":      {"policies:\n  mail:\n    limits:\n      - hourly\n", `4: policies.mail.limits[0]: must be a mapping with the keys name, algorithm, rate, anchor, precision, burst, refill, slots, lease, per, cost, headroom, but it is the text "hourly"`},
		"braces in a name":     {strings.Replace(mail, "mail", `"{mail}"`, 1), `2: policies["{mail}"]: "{mail}" can not be a name`},

		"negative max_wait": {mail + "    max_wait: -1s\n", `5: policies.mail.max_wait: "-1s" is negative; write 0s`},
		"max_wait no unit":  {mail + "    max_wait: 10\n", `5: policies.mail.max_wait: "10": the duration has no unit`},
		"max_wait too long": {mail + "    max_wait: 61m\n", "5: policies.mail.max_wait: 1h1m0s is too long"},
		"max_wait overflow": {mail + "    max_wait: 99999999999h\n", "5: policies.mail.max_wait: 2562047h47m16.854775807s is too long"},

		"unknown overload":   {mail + "    overload: rejct\n", `5: policies.mail.overload: unknown overload strategy "rejct"; did you mean "reject"?`},
		"no overload at all": {mail + "    overload: none\n", `5: policies.mail.overload: unknown overload strategy "none"; use one of park, reject, drop, degrade`},
		"empty overload":     {mail + "    overload:\n", "5: policies.mail.overload: the value is empty"},
		"max_defer of zero":  {mail + "    max_defer: 0s\n", "5: policies.mail.max_defer: the max_defer must be longer than zero; to defer nothing, remove it and write overload: reject"},
		"max_defer for ever": {mail + "    max_defer: 367d\n", "5: policies.mail.max_defer: the max_defer must be at most 366d"},
		"max_defer too fine": {mail + "    max_defer: 10ns\n", "5: policies.mail.max_defer: the max_defer must be whole microseconds"},
		"max_defer no unit":  {mail + "    max_defer: 10\n", `5: policies.mail.max_defer: "10": the duration has no unit`},
		"nearly a max_defer": {mail + "    max-defer: 10s\n", `5: policies.mail.max-defer: unknown key "max-defer"; did you mean "max_defer"?`},

		"unknown API":        {mail + "    upstream: githup\n", `5: policies.mail.upstream.api: unknown API "githup"; did you mean "github"?`},
		"empty upstream":     {mail + "    upstream:\n", "5: policies.mail.upstream: the value is empty"},
		"upstream is a list": {mail + "    upstream: [github]\n", "5: policies.mail.upstream: must be a mapping with the keys api, headroom, quotas, max_freeze, but it is a list"},
		"nearly an upstream": {mail + "    upstream: {api: github, head_room: 5}\n", `5: policies.mail.upstream.head_room: unknown key "head_room"; did you mean "headroom"?`},
		"negative headroom":  {mail + "    upstream: {headroom: -1}\n", "5: policies.mail.upstream.headroom: the headroom is -1 tokens, not from 0 to 10000000"},
		"max_freeze of zero": {mail + "    upstream: {max_freeze: 0s}\n", `5: policies.mail.upstream.max_freeze: "0s" is not a time from above 0s to 744h0m0s`},
		"quota of no limit":  {mail + "    upstream:\n      quotas:\n        core: aa\n", `7: policies.mail.upstream.quotas.core: unknown limit "aa"`},

		"missing in a limit":    {limitKeys("per: a"), "4:" + limit + ".name: the limit has no name\n4:" + limit + ".algorithm: the algorithm is missing\n4:" + limit + ".rate: the rate is missing"},
		"empty in a limit":      {limitKeys("name:", "algorithm:", "rate:"), "4:" + limit + ".name: the limit has no name\n5:" + limit + ".algorithm: the algorithm is missing\n6:" + limit + ".rate: the rate is missing"},
		"reserved name":         {limitKeys("name: freeze", fixed, "rate: 1/s"), "4:" + limit + `.name: "freeze" is reserved`},
		"bad rate":              {limitKeys("name: a", fixed, "rate: 0/s"), "6:" + limit + `.rate: "0/s": the count must be at least 1`},
		"rate is a mapping":     {limitKeys("name: a", fixed, "rate: {count: 1}"), "6:" + limit + ".rate: must be a single value, but it is a mapping"},
		"burst on a window":     {limitKeys("name: a", fixed, "rate: 1/s", "burst: 0"), "7:" + limit + ".burst: burst is a key of token_bucket, but this limit is a fixed_window"},
		"zero burst":            {limitKeys("name: a", bucket, "rate: 1/s", "burst: 0"), "7:" + limit + ".burst: the burst is 0, but must be at least 1"},
		"negative burst":        {limitKeys("name: a", bucket, "rate: 1/s", "burst: -2"), "7:" + limit + ".burst: the burst is -2, but must be at least 1"},
		"fractional burst":      {limitKeys("name: a", bucket, "rate: 1/s", "burst: 1.5"), "7:" + limit + `.burst: "1.5" is not a whole number`},
		"burst overflow":        {limitKeys("name: a", bucket, "rate: 1/s", "burst: 99999999999999999999"), "7:" + limit + ".burst: the burst is 9223372036854775807, but must be at most 100000000"},
		"anchor on a bucket":    {limitKeys("name: a", bucket, "rate: 1/s", "anchor: first"), "7:" + limit + ".anchor: anchor is a key of fixed_window, but this limit is a token_bucket"},
		"unknown anchor":        {limitKeys("name: a", fixed, "rate: 1/s", "anchor: last"), "7:" + limit + `.anchor: unknown anchor "last"`},
		"headroom is a text":    {limitKeys("name: a", fixed, "rate: 9/s", "headroom: 10%"), "7:" + limit + `.headroom: must be a mapping with the keys high, but it is the text "10%"`},
		"headroom for others":   {limitKeys("name: a", fixed, "rate: 9/s", "headroom: {hihg: 10%}"), "7:" + limit + `.headroom.hihg: unknown key "hihg"; did you mean "high"?`},
		"headroom in doubt":     {limitKeys("name: a", fixed, "rate: 9/s", "headroom: {high: ten}"), "7:" + limit + `.headroom.high: "ten" is not a whole number`},
		"headroom of halves":    {limitKeys("name: a", fixed, "rate: 9/s", "headroom: {high: 2.5%}"), "7:" + limit + `.headroom.high: "2.5" is not a whole number`},
		"headroom of a spacing": {limitKeys("name: a", "algorithm: spacing", "rate: 9/s", "headroom: {high: 1}"), "7:" + limit + ".headroom: a spacing holds no tokens that could be kept"},
		"headroom of all":       {limitKeys("name: a", fixed, "rate: 9/s", "headroom: {high: 100%}"), "7:" + limit + ".headroom.high: the headroom is 100%, not from 1 to 99%"},
		"headroom of none":      {limitKeys("name: a", fixed, "rate: 9/s", "headroom: {high: 0}"), "7:" + limit + ".headroom.high: the headroom is 0 tokens, not from 1 to 100000000 tokens; remove the key"},
		"nothing for others":    {limitKeys("name: a", fixed, "rate: 9/s", "headroom: {high: 9}"), "7:" + limit + ".headroom: a headroom of 9 leaves nothing of 9 for other tasks; write at most 8"},
		"share of one token":    {limitKeys("name: a", fixed, "rate: 1/s", "headroom: {high: 1%}"), "7:" + limit + ".headroom: a headroom of 1 leaves nothing of 1 for other tasks"},

		"limit twice": {mail + "      - {name: a, algorithm: fixed_window, rate: 1/s}\n", `5: policies.mail.limits[1].name: "a" is the name of limits[0] already`},
		"nearly a key": {limitKeys("Name: a", "algorthm: fixed_window", "rates: 1/x"), "4:" + limit + ".Name: unknown key \"Name\"; did you mean \"name\"?\n" +
			"5:" + limit + ".algorthm: unknown key \"algorthm\"; did you mean \"algorithm\"?\n6:" + limit + ".rates: unknown key \"rates\"; did you mean \"rate\"?\n6:" + limit + `.rate: "1/x": the unit "x" is unknown`},

		"routes are a mapping": {mail + "routes:\n  a: mail\n", `5: routes: must be a list of routes, each starting with "- task:", but it is a mapping`},
		"empty task":           {mail + "routes:\n  - policy: mail\n    task: \"\"\n", "7: routes[0].task: the task is missing"},
		"no task, no policy":   {mail + "routes:\n  - {}\n", "6: routes[0].task: the task is missing\n6: routes[0].policy: the policy is missing"},
		"star in the midst":    {mail + "routes:\n  - task: a*b\n    policy: mail\n", `6: routes[0].task: "a*b" has a * before its end`},
		"unknown policy":       {mail + "routes:\n  - task: a\n    policy: mial\n", `7: routes[0].policy: unknown policy "mial"; did you mean "mail"?`},
		"unreachable route":    {mail + "routes:\n  - {task: a*, policy: mail}\n  - {task: ab, policy: mail}\n", `7: routes[1].task: no task gets to "ab"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := policy.Parse("p.yaml", []byte(test.file))
			assert.Nil(t, config)
			var invalid *policy.ConfigError
			require.ErrorAs(t, err, &invalid)
			got, want := strings.Split(err.Error(), "\n"), strings.Split(test.want, "\n")
			require.Len(t, got, len(want), err.Error())
			for i := range want {
				assert.True(t, strings.HasPrefix(got[i], "p.yaml:"+want[i]), "%s\nshould begin with\np.yaml:%s", got[i], want[i])
			}
		})
	}
}

func TestParseMaxWait(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]time.Duration{
		"":                    policy.DefaultMaxWait,
		"    max_wait: 0s\n":  0,
		"    max_wait: 0\n":   0,
		"    max_wait: 1ms\n": time.Millisecond,
		"    max_wait: 1h\n":  time.Hour,
	} {
		config, err := policy.Parse("p.yaml", []byte(mail+line))
		require.NoError(t, err)
		assert.Equal(t, want, config.Policy("mail").Wait(), line)
	}
}

func TestParseAnchorsAndMerges(t *testing.T) {
	t.Parallel()
	config, err := policy.Parse("p.yaml", []byte(`policies:
  a: &a
    limits: &limits
      - &hourly {name: hourly, algorithm: token_bucket, rate: &rate 5/h}
    lane: tenant
  b:
    limits: *limits
  c:
    <<: *a
    lane: user
    limits:
      - *hourly
      - <<: [*hourly]
        name: again
        rate: *rate
`))
	require.NoError(t, err)
	hourly := policy.Limit{Name: "hourly", Algorithm: policy.TokenBucket, Rate: policy.Rate{Count: 5, Period: time.Hour}}
	again := hourly
	again.Name = "again"
	assert.Equal(t, []policy.Policy{
		{Name: "a", Limits: []policy.Limit{hourly}, Lane: "tenant"},
		{Name: "b", Limits: []policy.Limit{hourly}},
		{Name: "c", Limits: []policy.Limit{hourly, again}, Lane: "user"},
	}, config.Policies)
}

func TestParseKeepsTheFilesOrder(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	file.WriteString("policies:\n")
	for _, name := range []string{"z", "a", "m.x", "m"} {
		file.WriteString("  " + name + ": {limits: [{name: l, algorithm: fixed_window, rate: 1/s}]}\n")
	}
	config, err := policy.Parse("p.yaml", []byte(file.String()))
	require.NoError(t, err)
	var names []string
	for _, policy := range config.Policies {
		names = append(names, policy.Name)
	}
	assert.Equal(t, []string{"z", "a", "m.x", "m"}, names)
}

func FuzzParse(f *testing.F) {
	for _, path := range []string{"sample.yaml", "every_key.yaml", "five_mistakes.yaml"} {
		data, err := os.ReadFile(filepath.Join("testdata", path))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(mail + "---\n"))
	f.Add([]byte("policies: &a\n  <<: [*a, *a]\n  mail: *a\n"))
	f.Add([]byte(limitKeys("name: a", "algorithm: token_bucket", "rate: 1/366d", "burst: 29", "<<: {}")))
	f.Add([]byte(limitKeys("name: a", "algorithm: sliding_window", "rate: 1/366d", "precision: 1us")))
	f.Add([]byte(limitKeys("name: a", "algorithm: spacing", "rate: 1/366d", "burst: 1")))
	f.Add([]byte(limitKeys("name: a", "algorithm: concurrency", "slots: 0", "leases: 1e9d", "rate: 1/s")))
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := policy.Parse("p.yaml", data)
		if err == nil {
			require.NoError(t, config.Validate())
			return
		}
		var invalid *policy.ConfigError
		require.ErrorAs(t, err, &invalid)
		require.NotEmpty(t, invalid.Problems)
		lines := 1
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // YAML knows all of these
			lines += strings.Count(string(data), end)
		}
		for _, p := range invalid.Problems {
			require.NotEmpty(t, p.Message)
			require.NotContains(t, p.String(), "\n", "a problem has one line")
			require.LessOrEqual(t, p.Line, lines)
		}
	})
}
