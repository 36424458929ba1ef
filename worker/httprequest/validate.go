package httprequest

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

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
