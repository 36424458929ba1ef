package upstream

import (
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/rampmeter/rampmeter/throttle"
)

// readIETF reads the fields of draft-ietf-httpapi-ratelimit-headers as any of its
// versions has them. From -08 on a list of named quotas, in -07 one dictionary, up to
// -06 a field for each number. Each looks unlike the others.
func readIETF(r *reader) {
	values := r.header.Values("RateLimit")
	if len(values) == 0 {
		quotas{{headers: "RateLimit-*", reset: inSeconds}}.read(r)
		return
	}
	if list, err := httpsfv.UnmarshalList(values); err == nil && len(list) > 0 {
		r.ietfList(list)
	} else if dictionary, err := httpsfv.UnmarshalDictionary(values); err != nil || !r.ietfDictionary(dictionary) {
		r.malformed("RateLimit")
	}
}

// ietfList reads what draft -10 sends: how much is left of each quota (r), and for
// how long that counts (t); beside it, of each quota, how much it is (q) in what
// time (w).
func (r *reader) ietfList(list httpsfv.List) {
	policies := map[string]throttle.Reading{}
	r.eachIETF("RateLimit-Policy", r.ietfPolicies(), func(name string, params *httpsfv.Params) bool {
		limit, _ := ietfNumber(params.Get("q"))
		policies[name] = throttle.Reading{Limit: limit, Window: ietfSeconds(params.Get("w"))}
		return true
	})
	r.eachIETF("RateLimit", list, func(name string, params *httpsfv.Params) bool {
		reading := policies[name]
		left, ok := ietfNumber(params.Get("r"))
		if ok {
			reading.Quota, reading.Remaining, reading.Reset = name, left, ietfSeconds(params.Get("t"))
			r.add(reading)
		}
		return ok
	})
}

// ietfPolicies returns what RateLimit-Policy lists.
func (r *reader) ietfPolicies() httpsfv.List {
	list, err := httpsfv.UnmarshalList(r.header.Values("RateLimit-Policy"))
	if err != nil {
		r.malformed("RateLimit-Policy")
	}
	return list
}

// eachIETF reads each item of a header: the name of a quota, which is a string or a
// token, and its parameters. Reports of false, and what is no such item, are malformed.
func (r *reader) eachIETF(header string, list httpsfv.List, read func(string, *httpsfv.Params) bool) {
	for _, member := range list {
		ok := false
		if item, isItem := member.(httpsfv.Item); isItem {
			switch name := item.Value.(type) {
			case string:
				ok = read(name, item.Params)
			case httpsfv.Token:
				ok = read(string(name), item.Params)
			}
		}
		if !ok {
			r.malformed(header)
		}
	}
}

// ietfDictionary reads what draft -07 sends: limit=100, remaining=50, reset=5; and
// beside it "100;w=10".
func (r *reader) ietfDictionary(dictionary *httpsfv.Dictionary) bool {
	value := func(key string) (any, bool) {
		member, _ := dictionary.Get(key)
		item, ok := member.(httpsfv.Item)
		return item.Value, ok
	}
	left, ok := ietfNumber(value("remaining"))
	if !ok {
		return false
	}
	reading := throttle.Reading{Remaining: left, Reset: ietfSeconds(value("reset"))}
	reading.Limit, _ = ietfNumber(value("limit"))
	if list, err := httpsfv.UnmarshalList(r.header.Values("RateLimit-Policy")); err == nil && len(list) > 0 {
		if item, ok := list[0].(httpsfv.Item); ok {
			reading.Window = ietfSeconds(item.Params.Get("w"))
		}
	}
	r.add(reading)
	return true
}

// ietfNumber returns a number that is there and makes sense, or zero.
func ietfNumber(value any, there bool) (int64, bool) {
	number, ok := value.(int64)
	if !there || !ok || number < 0 || number > mostTokens {
		return 0, false
	}
	return number, true
}

// ietfSeconds is a number of seconds, at most Longest.
func ietfSeconds(value any, there bool) time.Duration {
	number, _ := ietfNumber(value, there)
	return time.Duration(min(number, int64(Longest/time.Second))) * time.Second
}
