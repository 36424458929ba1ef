package producer_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

func TestParseSchedule(t *testing.T) {
	t.Parallel()
	got, err := producer.ParseSchedule("s.yaml", []byte(`
schedule:
  - name: nightly
    cron: "30 3 * * *"
    timezone: Europe/Berlin
    url: https://h/reports?a=1&b=2
    method: POST
    attributes: &who {installation: "42"}
  - name: sync
    cron: "*/10 * * * * *"
    type: crm:sync
    payload: {full: false, since: 2026-01-02, n: [1, 2.5, null]}
    attributes: *who
    queue: low
    max_retry: 0
    timeout: 30s
    unique: 1h
`))
	require.NoError(t, err)
	zero := 0
	who := map[string]string{"installation": "42"}
	assert.Equal(t, &producer.Schedule{Entries: []producer.ScheduleEntry{
		{Name: "nightly", Cron: "30 3 * * *", Timezone: "Europe/Berlin", Entry: producer.Entry{
			Type: "http:request", Payload: []byte(`{"method":"POST","url":"https://h/reports?a=1&b=2"}`), Attributes: who}},
		{Name: "sync", Cron: "*/10 * * * * *", Entry: producer.Entry{
			Type: "crm:sync", Payload: []byte(`{"full":false,"n":[1,2.5,null],"since":"2026-01-02T00:00:00Z"}`), Attributes: who,
			Queue: "low", MaxRetry: &zero, Timeout: 30 * time.Second, Unique: time.Hour}},
	}}, got)
}

func TestParseScheduleNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := producer.ParseSchedule("s.yaml", []byte(`schedule:
  - name: a b
    cron: "* * *"
    url: http://h
  - name: good
    cron: "@daily"
    type: t
    id: mine
    timeout: 30
  - cron: "* * * * *"
    timezone: Mars/Olympus
    type: t
    attributes: {installation: 42}
  - name: good
    cron: 5
    url: /relative
    typ: x
  - just a text
  - name: last
    cron: "* * * * *"
extra: 1
`))
	var config *policy.ConfigError
	require.ErrorAs(t, err, &config)
	assert.Equal(t, `s.yaml:2: schedule[0].name: "a b" may have letters, digits, dots, dashes and underscores, at most 100
s.yaml:3: schedule[0].cron: "* * *" has 3 fields; write five (minute hour day month weekday), as in "30 3 * * *", or six with seconds first
s.yaml:6: schedule[1].cron: "@daily" has 1 fields; write five (minute hour day month weekday), as in "30 3 * * *", or six with seconds first
s.yaml:8: schedule[1].id: can be right for one tick only; leave it out
s.yaml:9: schedule[1].timeout: must be a duration above 0, as in "30s" or "1h30m"
s.yaml:10: schedule[2].name: missing; it is what schedulers agree on
s.yaml:11: schedule[2].timezone: "Mars/Olympus" is unknown; write it like Europe/Berlin
s.yaml:13: schedule[2].attributes: must be a JSON object of strings, as in {"installation":"42"}
s.yaml:14: schedule[3].name: "good" is the name of schedule[1] already
s.yaml:15: schedule[3].cron: must be a text; put it in quotes
s.yaml:17: schedule[3].typ: unknown; the fields are name, cron, timezone, attributes, body, headers, max_retry, method, payload, process_in, queue, retention, timeout, type, unique, url
s.yaml:18: schedule[4]: must be a mapping with name, cron and a task
s.yaml:19: schedule[5].type: missing; name the task type, or give url for an http:request
s.yaml:21: extra: unknown; the only key here is schedule`, err.Error())
}

func TestParseScheduleRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ data, says string }{
		"nothing":         {"", "s.yaml:1: the file is empty"},
		"only a comment":  {"# later\n", "the file is empty"},
		"another kind":    {"- name: x\n", "s.yaml:1: expected a list of entries under schedule:"},
		"no entries":      {"schedule: []\n", "schedule: is empty"},
		"null":            {"schedule:\n", "schedule: must be a list of entries"},
		"no list":         {"schedule: {name: x}\n", "must be a list of entries"},
		"other keys only": {"policies: {}\n", "policies: unknown; the only key here is schedule"},
		"empty mapping":   {"{}\n", "there is no schedule:"},
		"twice":           {"schedule: [{name: a, cron: '* * * * *', type: t}]\nschedule: []\n", "s.yaml:2: schedule: given twice"},
		"two documents":   {"schedule: [{name: a, cron: '* * * * *', type: t}]\n---\na: b\n", "more than one YAML document"},
		"no YAML":         {"schedule:\n\t- name: x\n", "s.yaml:2: no YAML: found character that cannot start any token"},
		"name twice":      {"schedule: [{name: a, name: b, cron: '* * * * *', type: t}]\n", "name: given twice"},
		"queue twice":     {"schedule: [{name: a, cron: '* * * * *', type: t, queue: a, queue: b}]\n", "queue: given twice"},
		"odd keys":        {"schedule: [{name: a, cron: '* * * * *', type: t, payload: {1: a}}]\n", "payload: can not be written as JSON"},
		"no number":       {"schedule: [{name: a, cron: '* * * * *', type: t, payload: .nan}]\n", "payload: can not be written as JSON"},
		"an absolute time": {"schedule: [{name: a, cron: '* * * * *', type: t, deadline: 2130-01-02T00:00:00Z}]\n",
			"deadline: can be right for one tick only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := producer.ParseSchedule("s.yaml", []byte(c.data))
			var config *policy.ConfigError
			require.ErrorAs(t, err, &config)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestReadSchedule(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.yaml")
	_, err := producer.ReadSchedule(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("schedule: [{name: a, cron: '* * * * *', type: t}]"), 0o600))
	got, err := producer.ReadSchedule(path)
	require.NoError(t, err)
	assert.Len(t, got.Entries, 1)
}

func FuzzParseSchedule(f *testing.F) {
	f.Add("schedule: [{name: a, cron: '* * * * *', type: t, payload: {a: 1}}]")
	f.Add("schedule:\n- &a {name: x, cron: '0 0 1 1 * 1', url: http://h}\n- *a\n")
	f.Add("---\n")
	f.Add("schedule: [{cron: [1], name: ~, <<: {a: b}}]")
	f.Fuzz(func(t *testing.T, data string) {
		schedule, err := producer.ParseSchedule("s", []byte(data))
		if err != nil {
			var config *policy.ConfigError
			require.True(t, errors.As(err, &config))
			require.NotEmpty(t, config.Problems)
			return
		}
		require.NoError(t, schedule.Validate())
	})
}
