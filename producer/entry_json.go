package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rampmeter/rampmeter/worker/httprequest"
)

// ParseEntry reads an entry from a JSON object and validates it:
//
//	{"type":"email:send","payload":{"to":"a@b"},"attributes":{"installation":"42"},
//	 "queue":"mail","id":"mail-7","max_retry":5,"timeout":"30s","deadline":"2030-01-02T15:04:05Z",
//	 "process_in":"10s","unique":"1h","retention":"1h"}
//
// process_at takes an RFC 3339 time as deadline does. The payload is handed to
// the worker as the JSON it is. Instead of type and payload an HTTP call may be
// written in short: {"url":"https://...","method":"POST","headers":{},"body":""}.
//
// Unknown keys are errors, and so are keys given twice. The error is a
// FieldErrors with every problem found.
func ParseEntry(data []byte) (Entry, error) {
	fields, err := splitObject(data)
	if err != nil {
		return Entry{}, FieldErrors{{Message: err.Error()}}
	}
	var problems FieldErrors
	entry := readEntry(fields, fieldNames(), &problems)
	if err := problems.orNil(); err != nil {
		return Entry{}, err
	}
	return entry, entry.Validate()
}

// field is one key of an entry with its value still as it was written.
type field struct {
	name  string
	value json.RawMessage
}

// splitObject reads the keys in their order. Decoding into a struct would take
// a key given twice, or in capitals, without a word.
func splitObject(data []byte) (fields []field, err error) {
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	start, err := dec.Token()
	if err == nil && start != json.Delim('{') {
		return nil, errors.New(`no JSON object, expected one like {"url":"https://..."}`)
	}
	for err == nil && dec.More() {
		var name json.Token
		var value json.RawMessage
		if name, err = dec.Token(); err != nil {
			break
		}
		err = dec.Decode(&value)
		fields = append(fields, field{name.(string), value})
	}
	if err == nil {
		_, err = dec.Token() // the closing brace
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, errors.New("cut off: the JSON object has no end")
	case err != nil:
		return nil, fmt.Errorf("no JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object; put one object on a line")
	}
	return fields, nil
}

var errObjectOfStrings = errors.New(`must be a JSON object of strings, as in {"installation":"42"}`)

// draft is an entry while its fields come in: the short form is put together
// once all of them are known.
type draft struct {
	Entry

	http  httprequest.Payload
	given map[string]bool
}

// readers says how each field is read. Values are checked for their JSON type
// here and for their sense in Entry.validate.
var readers = map[string]func(d *draft, value json.RawMessage) error{
	"type":       func(d *draft, v json.RawMessage) error { return readText(v, &d.Type) },
	"payload":    func(d *draft, v json.RawMessage) error { return readPayload(v, &d.Payload) },
	"url":        func(d *draft, v json.RawMessage) error { return readText(v, &d.http.URL) },
	"method":     func(d *draft, v json.RawMessage) error { return readText(v, &d.http.Method) },
	"headers":    func(d *draft, v json.RawMessage) error { return readTexts(v, &d.http.Headers) },
	"body":       func(d *draft, v json.RawMessage) error { return readText(v, &d.http.Body) },
	"attributes": func(d *draft, v json.RawMessage) error { return readTexts(v, &d.Attributes) },
	"queue":      func(d *draft, v json.RawMessage) error { return readName(v, &d.Queue) },
	"id":         func(d *draft, v json.RawMessage) error { return readName(v, &d.ID) },
	"max_retry":  func(d *draft, v json.RawMessage) error { return readCount(v, &d.MaxRetry) },
	"timeout":    func(d *draft, v json.RawMessage) error { return readDuration(v, &d.Timeout) },
	"process_in": func(d *draft, v json.RawMessage) error { return readDuration(v, &d.ProcessIn) },
	"unique":     func(d *draft, v json.RawMessage) error { return readDuration(v, &d.Unique) },
	"retention":  func(d *draft, v json.RawMessage) error { return readDuration(v, &d.Retention) },
	"deadline":   func(d *draft, v json.RawMessage) error { return readTime(v, &d.Deadline) },
	"process_at": func(d *draft, v json.RawMessage) error { return readTime(v, &d.ProcessAt) },
}

// shortForm are the fields that stand for an http:request's payload.
var shortForm = []string{"method", "headers", "body"}

// readEntry reads the fields of an entry; known are the names to tell to whoever
// misspelt one.
func readEntry(fields []field, known []string, problems *FieldErrors) Entry {
	d := draft{given: map[string]bool{}}
	for _, f := range fields {
		read, ok := readers[f.name]
		switch {
		case !ok:
			problems.add(f.name, "unknown; the fields are %s", strings.Join(known, ", "))
			continue
		case d.given[f.name]:
			problems.add(f.name, "given twice")
			continue
		}
		d.given[f.name] = true
		if err := read(&d, f.value); err != nil {
			problems.add(f.name, "%s", err)
		}
	}
	d.finish(problems)
	return d.Entry
}

// finish turns the short form into the http:request it is short for.
func (d *draft) finish(problems *FieldErrors) {
	if !d.given["url"] {
		for _, name := range shortForm {
			if d.given[name] {
				problems.add(name, "goes with url; in the long form it belongs in the payload")
			}
		}
		return
	}
	if d.given["payload"] {
		problems.add("payload", "excludes url, which is short for an %s payload", httprequest.TaskType)
	}
	if d.given["type"] && d.Type != httprequest.TaskType {
		problems.add("type", "%q does not go with url, which makes it an %s; leave one of them out", d.Type, httprequest.TaskType)
	}
	if len(*problems) > 0 {
		return
	}
	payload, err := d.http.Encode()
	if err != nil {
		problems.add("", "%s", reason(err))
		return
	}
	d.Type, d.Payload = httprequest.TaskType, payload
}

func fieldNames() []string { return slices.Sorted(maps.Keys(readers)) }

func readText(value json.RawMessage, into *string) error {
	if value[0] != '"' {
		return errors.New("must be a JSON string")
	}
	return json.Unmarshal(value, into)
}

// readName is for names that may be left out, but not left empty.
func readName(value json.RawMessage, into *string) error {
	if err := readText(value, into); err != nil {
		return err
	}
	if *into == "" {
		return errors.New("must not be empty; leave it out for the default")
	}
	return nil
}

func readTexts(value json.RawMessage, into *map[string]string) error {
	var texts map[string]*string // pointers tell null from the empty string
	if value[0] != '{' || json.Unmarshal(value, &texts) != nil {
		return errObjectOfStrings
	}
	*into = make(map[string]string, len(texts))
	for name, text := range texts {
		if text == nil {
			return errObjectOfStrings
		}
		(*into)[name] = *text
	}
	return nil
}

func readCount(value json.RawMessage, into **int) error {
	if value[0] == 'n' || json.Unmarshal(value, into) != nil {
		return errors.New("must be a whole number, as in 5")
	}
	return nil
}

func readDuration(value json.RawMessage, into *time.Duration) error {
	var text string
	if json.Unmarshal(value, &text) == nil {
		if d, err := time.ParseDuration(text); err == nil && d > 0 {
			*into = d
			return nil
		}
	}
	return errors.New(`must be a duration above 0, as in "30s" or "1h30m"`)
}

func readTime(value json.RawMessage, into *time.Time) error {
	var text string
	if json.Unmarshal(value, &text) == nil {
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			*into = at
			return nil
		}
	}
	return errors.New(`must be a time with its zone, as in "2030-01-02T15:04:05Z"`)
}

// readPayload takes the spaces out, so that Unique finds two spellings of one
// payload to be the same.
func readPayload(value json.RawMessage, into *[]byte) error {
	var b bytes.Buffer
	if err := json.Compact(&b, value); err != nil {
		return err
	}
	*into = b.Bytes()
	return nil
}
