package producer_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestParseEntry(t *testing.T) {
	t.Parallel()
	five := 5
	for name, c := range map[string]struct {
		data string
		want producer.Entry
	}{
		"the least": {
			`{"type":"email:send"}`,
			producer.Entry{Type: "email:send"},
		},
		"everything but the times to process at": {
			`{"type":"email:send","payload":{"to": "a@b", "n": 1},"attributes":{"installation":"42","points":"5"},
			  "queue":"mail","id":"mail-7","max_retry":5,"timeout":"30s","deadline":"2130-01-02T15:04:05+02:00",
			  "unique":"1h","retention":"90m"}`,
			producer.Entry{
				Type: "email:send", Payload: []byte(`{"to":"a@b","n":1}`),
				Attributes: map[string]string{"installation": "42", "points": "5"},
				Queue:      "mail", ID: "mail-7", MaxRetry: &five, Timeout: 30 * time.Second,
				Deadline: time.Date(2130, 1, 2, 15, 4, 5, 0, time.FixedZone("", 2*60*60)),
				Unique:   time.Hour, Retention: 90 * time.Minute,
			},
		},
		"a payload that is no object": {
			`{"type":"count","payload":[1, "two", null]}`,
			producer.Entry{Type: "count", Payload: []byte(`[1,"two",null]`)},
		},
		"later": {
			`{"type":"t","process_in":"1500ms"}`,
			producer.Entry{Type: "t", ProcessIn: 1500 * time.Millisecond},
		},
		"at a time": {
			`{"type":"t","process_at":"2130-01-02T15:04:05Z"}`,
			producer.Entry{Type: "t", ProcessAt: time.Date(2130, 1, 2, 15, 4, 5, 0, time.UTC)},
		},
		"an HTTP call in short": {
			`{"url":"https://h/?a=1&b=2","method":"POST","headers":{"X":"y"},"body":"{}"}`,
			producer.Entry{Type: "http:request",
				Payload: []byte(`{"method":"POST","url":"https://h/?a=1&b=2","headers":{"X":"y"},"body":"{}"}`)},
		},
		"an HTTP call in long": {
			`{"type":"http:request","payload":{"url":"https://h"}}`,
			producer.Entry{Type: "http:request", Payload: []byte(`{"url":"https://h"}`)},
		},
		"short with its type": {
			`{"type":"http:request","url":"https://h"}`,
			producer.Entry{Type: "http:request", Payload: []byte(`{"method":"GET","url":"https://h"}`)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := producer.ParseEntry([]byte(c.data))
			require.NoError(t, err)
			assert.WithinDuration(t, c.want.Deadline, got.Deadline, 0)
			got.Deadline = c.want.Deadline // two equal instants may differ in their zone's pointer
			assert.Equal(t, c.want, got)
		})
	}
}

func TestParseEntryRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ data, says string }{
		"empty":                  {``, "cut off"},
		"cut off":                {`{"type":"t"`, "cut off: the JSON object has no end"},
		"no JSON":                {`type: t`, "no JSON: invalid character"},
		"no object":              {`[{"type":"t"}]`, "no JSON object"},
		"two objects":            {`{"type":"t"} {"type":"t"}`, "something follows"},
		"no UTF-8":               {"{\"type\":\"\xff\"}", "not valid UTF-8"},
		"no type":                {`{"payload":{}}`, "type: missing"},
		"blank type":             {`{"type":" "}`, "type: missing"},
		"unknown field":          {`{"type":"t","maxRetry":3}`, "maxRetry: unknown; the fields are attributes, body,"},
		"capitals":               {`{"Type":"t"}`, "Type: unknown"},
		"twice":                  {`{"type":"t","type":"u"}`, "type: given twice"},
		"type of another type":   {`{"type":7}`, "type: must be a JSON string"},
		"number as an attribute": {`{"type":"t","attributes":{"installation":42}}`, `attributes: must be a JSON object of strings, as in {"installation":"42"}`},
		"null as an attribute":   {`{"type":"t","attributes":{"installation":null}}`, "attributes: must be a JSON object of strings"},
		"attribute without name": {`{"type":"t","attributes":{"":"1"}}`, "attributes: must not have an empty name"},
		"empty queue":            {`{"type":"t","queue":""}`, "queue: must not be empty"},
		"blank queue":            {`{"type":"t","queue":" "}`, "queue: must not be blank"},
		"empty id":               {`{"type":"t","id":""}`, "id: must not be empty"},
		"retries below zero":     {`{"type":"t","max_retry":-1}`, "max_retry: -1 is below 0"},
		"half a retry":           {`{"type":"t","max_retry":1.5}`, "max_retry: must be a whole number"},
		"retries null":           {`{"type":"t","max_retry":null}`, "max_retry: must be a whole number"},
		"timeout in numbers":     {`{"type":"t","timeout":30}`, `timeout: must be a duration above 0, as in "30s"`},
		"timeout of zero":        {`{"type":"t","timeout":"0s"}`, "timeout: must be a duration above 0"},
		"timeout asynq drops":    {`{"type":"t","timeout":"500ms"}`, "timeout: 500ms must be whole seconds"},
		"negative delay":         {`{"type":"t","process_in":"-1s"}`, "process_in: must be a duration above 0"},
		"both delays":            {`{"type":"t","process_in":"1s","process_at":"2130-01-02T15:04:05Z"}`, "process_in: excludes process_at"},
		"no zone":                {`{"type":"t","process_at":"2130-01-02T15:04:05"}`, "process_at: must be a time with its zone"},
		"deadline gone by":       {`{"type":"t","deadline":"2001-01-02T15:04:05Z"}`, "deadline: 2001-01-02T15:04:05Z is in the past"},
		"unique asynq refuses":   {`{"type":"t","unique":"10ms"}`, "unique: 10ms must be whole seconds"},
		"bad url":                {`{"url":"/x"}`, `url "/x" must start with http`},
		"url and payload":        {`{"url":"http://h","payload":{}}`, "payload: excludes url"},
		"url of another type":    {`{"url":"http://h","type":"t"}`, `type: "t" does not go with url`},
		"method without url":     {`{"type":"t","method":"GET"}`, "method: goes with url"},
		"bad long form":          {`{"type":"http:request","payload":{"uri":"x"}}`, `payload: unknown field "uri"`},
		"http without payload":   {`{"type":"http:request"}`, "payload: it is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := producer.ParseEntry([]byte(c.data))
			var problems producer.FieldErrors
			require.ErrorAs(t, err, &problems)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

func TestParseEntryNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := producer.ParseEntry([]byte(`{"typ":"t","timeout":"soon","attributes":[]}`))
	var problems producer.FieldErrors
	require.ErrorAs(t, err, &problems)
	var fields []string
	for _, p := range problems {
		fields = append(fields, p.Path)
	}
	assert.Equal(t, []string{"typ", "timeout", "attributes"}, fields)
	assert.NotContains(t, err.Error(), "\n", "a line's problems fit a line")
}

// An entry's fields must arrive in Redis as asynq keeps them, not only in options.
func TestEntryTaskAsAsynqKeepsIt(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		p := producerOn(t, srv)
		entry, err := producer.ParseEntry([]byte(`{"type":"email:send","payload":{"to":"a@b"},"attributes":{"installation":"42"},
			"queue":"mail","id":"mail-7","max_retry":0,"timeout":"30s","deadline":"2130-01-02T15:04:05Z",
			"process_at":"2129-01-02T15:04:05Z","retention":"90m","unique":"1h"}`))
		require.NoError(t, err)
		_, err = p.Enqueue(t.Context(), entry.Task())
		require.NoError(t, err)

		info, err := inspectorOn(srv).GetTaskInfo("mail", "mail-7")
		require.NoError(t, err)
		assert.Equal(t, "email:send", info.Type)
		assert.JSONEq(t, `{"to":"a@b"}`, string(info.Payload))
		assert.Equal(t, map[string]string{"installation": "42"}, info.Headers)
		assert.Equal(t, 0, info.MaxRetry)
		assert.Equal(t, 30*time.Second, info.Timeout)
		assert.WithinDuration(t, time.Date(2130, 1, 2, 15, 4, 5, 0, time.UTC), info.Deadline, 0)
		assert.Equal(t, asynq.TaskStateScheduled, info.State)
		assert.WithinDuration(t, time.Date(2129, 1, 2, 15, 4, 5, 0, time.UTC), info.NextProcessAt, 0)
		assert.Equal(t, 90*time.Minute, info.Retention)

		sameID, sameWork := entry, entry
		sameID.Payload = []byte(`{"to":"c@d"}`)
		_, err = p.Enqueue(t.Context(), sameID.Task())
		assert.ErrorIs(t, err, asynq.ErrTaskIDConflict)
		assert.True(t, producer.AlreadyThere(err))
		sameWork.ID = ""
		_, err = p.Enqueue(t.Context(), sameWork.Task())
		assert.ErrorIs(t, err, asynq.ErrDuplicateTask)
		assert.True(t, producer.AlreadyThere(err))
	})
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte(`{"type":"t","payload":{"a":[1]},"max_retry":1,"timeout":"1s"}`))
	f.Add([]byte(`{"url":"http://h","headers":{"a":"b"},"attributes":{}}`))
	f.Add([]byte(`{"type":null,"":{},"process_at":"2130-01-02T15:04:05Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		entry, err := producer.ParseEntry(data)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NoError(t, entry.Validate())
		require.Equal(t, entry.Type, entry.Task().Type())
	})
}
