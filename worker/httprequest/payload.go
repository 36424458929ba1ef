// Package httprequest is the built-in task "http:request", which makes one outbound
// HTTP call: its payload, which a producer writes, and the handler that runs it.
//
// Both sides use the same Decode and Encode, so a payload that a producer let
// through is one that a worker understands. That is why the package producer imports
// this one. This one imports neither worker nor producer: the handler is told its
// reservation by its context, and tells what the upstream said by its error.
package httprequest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// TaskType is the asynq task type whose payload this package describes.
const TaskType = "http:request"

// The bounds of a payload. They keep one task from filling Redis or a worker's
// memory.
const (
	// MaxSize is the most an encoded payload may measure, in bytes: 1 MiB.
	MaxSize = 1 << 20
	// MaxURL is the longest URL, in bytes. Most servers refuse longer ones.
	MaxURL = 8 << 10
)

// ErrInvalid is wrapped by every error of Decode, Encode and Validate. Trying
// the same payload again fails again.
var ErrInvalid = errors.New("invalid " + TaskType + " payload")

// Payload is one HTTP request to be made.
type Payload struct {
	// Method is GET when empty. Methods are case-sensitive, so it is sent as
	// written.
	Method string `json:"method,omitempty"`
	// URL is absolute, http or https.
	URL string `json:"url"`
	// Headers are sent as they are, one value each. A Host header replaces the
	// URL's host in the request.
	Headers map[string]string `json:"headers,omitempty"`
	// Body is sent as it is; empty means no body. JSON strings hold text, so a
	// binary body does not fit in here.
	Body string `json:"body,omitempty"`
}

// Decode reads a payload as Encode writes it, fills in the default method and
// validates it. Unknown keys are errors: a misspelt "boddy" should not become
// a call without a body.
func Decode(data []byte) (Payload, error) {
	if len(data) > MaxSize {
		return Payload{}, invalid("it has %d bytes, at most %d are allowed", len(data), MaxSize)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return Payload{}, invalid(`it is empty, expected {"url":"https://..."}`)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p Payload
	if err := dec.Decode(&p); err != nil {
		return Payload{}, fmt.Errorf("%w: %w", ErrInvalid, readable(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Payload{}, invalid("something follows the closing brace")
	}
	p = p.withDefaults()
	if err := p.Validate(); err != nil {
		return Payload{}, err
	}
	return p, nil
}

// Encode validates the payload, with the default method filled in, and returns
// it as JSON.
func (p Payload) Encode() ([]byte, error) {
	p = p.withDefaults()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a URL's & stays legible in asynq's tools
	if err := enc.Encode(p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	data := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if len(data) > MaxSize {
		return nil, invalid("it has %d bytes, at most %d are allowed", len(data), MaxSize)
	}
	return data, nil
}

func (p Payload) withDefaults() Payload {
	p.Method = cmp.Or(p.Method, "GET")
	return p
}

// readable drops the prefixes that say more about the parser than about the
// mistake.
func readable(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return fmt.Errorf("it is a JSON %s, expected an object", wrong.Value)
		}
		return fmt.Errorf("%s must not be a JSON %s", wrong.Field, wrong.Value)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON ends too early")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Validate reports the first thing that would keep the request from being made
// as written. An empty method is fine: it means GET.
func (p Payload) Validate() error {
	if err := validateURL(p.URL); err != nil {
		return err
	}
	if p.Method != "" && !isToken(p.Method) {
		return invalid("method %q is no HTTP method, expected one like GET or POST", p.Method)
	}
	if p.Method == "CONNECT" {
		return invalid("method CONNECT opens a tunnel and makes no request")
	}
	if !utf8.ValidString(p.Body) {
		return invalid("the body is not valid UTF-8, and a JSON string can hold nothing else")
	}
	return validateHeaders(p.Headers)
}

func validateURL(raw string) error {
	switch {
	case raw == "":
		return invalid("url is missing")
	case len(raw) > MaxURL:
		return invalid("url has %d bytes, at most %d are allowed", len(raw), MaxURL)
	case !utf8.ValidString(raw):
		return invalid("url is not valid UTF-8")
	}
	u, err := url.Parse(raw)
	if err != nil {
		// url.Error repeats the whole URL, which may hold a password.
		if parse, ok := errors.AsType[*url.Error](err); ok {
			err = parse.Err
		}
		return invalid("url can not be parsed: %v", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return invalid("url %q must start with http:// or https://", u.Redacted())
	}
	if u.Hostname() == "" {
		return invalid("url %q names no host", u.Redacted())
	}
	return nil
}

// ownHeaders are worked out from the body by whoever sends the request; a value
// of the payload's would be dropped without a word.
var ownHeaders = []string{"content-length", "transfer-encoding"}

// validateHeaders goes through the names in order, so that the same payload
// always gives the same message.
func validateHeaders(headers map[string]string) error {
	seen := make(map[string]string, len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		lower := strings.ToLower(name)
		switch other, twice := seen[lower]; {
		case !isToken(name):
			return invalid("%q is no header name", name)
		case twice:
			return invalid("headers %q and %q are the same header, keep one", other, name)
		case slices.Contains(ownHeaders, lower):
			return invalid("header %q is set from the body, leave it out", name)
		case !isHeaderValue(headers[name]):
			return invalid("the value of header %q holds a line break or another control character", name)
		}
		seen[lower] = name
	}
	return nil
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2: what methods
// and header names are made of.
func isToken(s string) bool {
	isOther := func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}
	return s != "" && !strings.ContainsFunc(s, isOther)
}

// isHeaderValue reports whether s can stand in one header line.
func isHeaderValue(s string) bool {
	isControl := func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
	return utf8.ValidString(s) && !strings.ContainsFunc(s, isControl)
}
