package httprequest_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/worker/httprequest"
)

func TestDecode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		data string
		want httprequest.Payload
	}{
		"url alone": {
			`{"url":"https://api.example.com/v1?a=1&b=2"}`,
			httprequest.Payload{Method: "GET", URL: "https://api.example.com/v1?a=1&b=2"},
		},
		"everything": {
			`{"method":"POST","url":"http://h:8080/","headers":{"Content-Type":"application/json"},"body":"{}"}`,
			httprequest.Payload{Method: "POST", URL: "http://h:8080/",
				Headers: map[string]string{"Content-Type": "application/json"}, Body: "{}"},
		},
		"a method of the server's own": {
			`{"method":"PURGE","url":"http://[::1]/x"}`,
			httprequest.Payload{Method: "PURGE", URL: "http://[::1]/x"},
		},
		"space around": {
			" {\"url\":\"http://h\"}\n",
			httprequest.Payload{Method: "GET", URL: "http://h"},
		},
	} {
		got, err := httprequest.Decode([]byte(c.data))
		require.NoError(t, err, name)
		assert.Equal(t, c.want, got, name)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ data, says string }{
		"nothing":              {``, "is empty"},
		"no object":            {`"http://h"`, "is a JSON string, expected an object"},
		"cut off":              {`{"url":"http://h"`, "ends too early"},
		"two objects":          {`{"url":"http://h"}{}`, "follows the closing brace"},
		"unknown key":          {`{"url":"http://h","boddy":""}`, `unknown field "boddy"`},
		"wrong type":           {`{"url":7}`, "url must not be a JSON number"},
		"no url":               {`{"method":"GET"}`, "url is missing"},
		"relative url":         {`{"url":"/v1/users"}`, "must start with http"},
		"another scheme":       {`{"url":"ftp://h/x"}`, "must start with http"},
		"no host":              {`{"url":"http:///x"}`, "names no host"},
		"port alone":           {`{"url":"http://:80/x"}`, "names no host"},
		"bad port":             {`{"url":"http://h:port"}`, "can not be parsed"},
		"long url":             {`{"url":"http://h/` + strings.Repeat("x", httprequest.MaxURL) + `"}`, "at most 8192"},
		"bad method":           {`{"method":"GET /","url":"http://h"}`, "is no HTTP method"},
		"tunnel":               {`{"method":"CONNECT","url":"http://h"}`, "tunnel"},
		"bad header name":      {`{"url":"http://h","headers":{"a b":"1"}}`, `"a b" is no header name`},
		"empty header name":    {`{"url":"http://h","headers":{"":"1"}}`, "is no header name"},
		"injected header":      {`{"url":"http://h","headers":{"A":"1\r\nB: 2"}}`, "line break"},
		"one header twice":     {`{"url":"http://h","headers":{"Accept":"1","accept":"2"}}`, "are the same header"},
		"length by hand":       {`{"url":"http://h","headers":{"content-length":"2"}}`, "leave it out"},
		"too large altogether": {`{"url":"http://h","body":"` + strings.Repeat("x", httprequest.MaxSize) + `"}`, "at most 1048576"},
	} {
		_, err := httprequest.Decode([]byte(c.data))
		require.ErrorIs(t, err, httprequest.ErrInvalid, name)
		assert.ErrorContains(t, err, c.says, name)
	}
}

func TestDecodeKeepsPasswordsOutOfMessages(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://me:hunter2@h:port/", "ftp://me:hunter2@h/", "http://me:hunter2@/"} {
		_, err := httprequest.Decode([]byte(`{"url":"` + url + `"}`))
		require.ErrorIs(t, err, httprequest.ErrInvalid)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestEncode(t *testing.T) {
	t.Parallel()
	data, err := httprequest.Payload{URL: "http://h/?a=1&b=2"}.Encode()
	require.NoError(t, err)
	assert.Equal(t, `{"method":"GET","url":"http://h/?a=1&b=2"}`, string(data))

	_, err = httprequest.Payload{Method: "GET"}.Encode()
	require.ErrorIs(t, err, httprequest.ErrInvalid)
	_, err = httprequest.Payload{URL: "http://h", Body: "\xff"}.Encode()
	require.ErrorIs(t, err, httprequest.ErrInvalid, "json would replace the byte without a word")
	_, err = httprequest.Payload{URL: "http://h", Body: strings.Repeat("\"", httprequest.MaxSize/2)}.Encode()
	require.ErrorIs(t, err, httprequest.ErrInvalid, "what counts is the size once encoded")
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"url":"http://h"}`,
		`{"method":"POST","url":"https://u:p@h:1/a?b#c","headers":{"A":"b"},"body":"\u0000\ud800"}`,
		`{"url":"http://h","headers":{"A":"1","a":"2"}}`,
		`{"url":"http://%zz"}`, `[]`, `null`, `{`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := httprequest.Decode(data)
		if err != nil {
			require.ErrorIs(t, err, httprequest.ErrInvalid)
			return
		}
		encoded, err := p.Encode()
		if err != nil { // escapes may take it over the bound, nothing else may
			require.ErrorContains(t, err, "at most")
			return
		}
		again, err := httprequest.Decode(encoded)
		require.NoError(t, err)
		if len(p.Headers) == 0 { // {} and nothing are the same to us
			p.Headers = nil
		}
		require.Equal(t, p, again)
	})
}
