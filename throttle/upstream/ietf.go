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
	if len(r.header.Values("RateLimit")) == 0 {
		if reading, ok := r.triple("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", inSeconds); ok {
			r.add(reading)
			r.usedUp(reading)
		}
		return
	}
	read := len(r.answer.Quotas)
	if !r.ietfList() && !r.ietfDictionary() {
		r.malformed("RateLimit")
	}
	for _, reading := range r.answer.Quotas[read:] {
		r.usedUp(reading)
	}
}

// ietfList reads what draft -10 sends: how much is left of each quota (r), and for
// how long that counts (t); beside it, of each quota, how much it is (q) in what
// time (w).
func (r *reader) ietfList() bool {
	list, err := httpsfv.UnmarshalList(r.header.Values("RateLimit"))
	if err != nil || len(list) == 0 {
		return false
	}
	policies := r.ietfPolicies()
	for _, member := range list {
		name, params, ok := ietfItem(member)
		if !ok {
			r.malformed("RateLimit")
			continue
		}
		left, ok := ietfNumber(params, "r")
		if !ok {
			r.malformed("RateLimit")
			continue
		}
		reading := policies[name]
		reading.Quota, reading.Remaining = name, left
		reading.Reset = ietfSeconds(params, "t")
		r.add(reading)
	}
	return true
}

// ietfPolicies reads RateLimit-Policy, by name.
func (r *reader) ietfPolicies() map[string]throttle.Reading {
	const name = "RateLimit-Policy"
	policies := map[string]throttle.Reading{}
	values := r.header.Values(name)
	if len(values) == 0 {
		return policies
	}
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		r.malformed(name)
		return policies
	}
	for _, member := range list {
		quota, params, ok := ietfItem(member)
		if !ok {
			r.malformed(name)
			continue
		}
		limit, _ := ietfNumber(params, "q")
		policies[quota] = throttle.Reading{Limit: limit, Window: ietfSeconds(params, "w")}
	}
	return policies
}

// ietfDictionary reads what draft -07 sends: limit=100, remaining=50, reset=5; and
// beside it "100;w=10".
func (r *reader) ietfDictionary() bool {
	dictionary, err := httpsfv.UnmarshalDictionary(r.header.Values("RateLimit"))
	if err != nil {
		return false
	}
	number := func(key string) (int64, bool) {
		member, _ := dictionary.Get(key)
		item, ok := member.(httpsfv.Item)
		if !ok {
			return 0, false
		}
		return ietfTokens(item.Value)
	}
	left, ok := number("remaining")
	if !ok {
		return false
	}
	reading := throttle.Reading{Remaining: left}
	reading.Limit, _ = number("limit")
	if reset, ok := number("reset"); ok {
		reading.Reset = seconds(reset)
	}
	list, err := httpsfv.UnmarshalList(r.header.Values("RateLimit-Policy"))
	if item, ok := first(list).(httpsfv.Item); err == nil && ok {
		reading.Window = ietfSeconds(item.Params, "w")
	}
	r.add(reading)
	return true
}

func first(list httpsfv.List) httpsfv.Member {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

// ietfItem returns a quota's name, a string or a token, and its parameters.
func ietfItem(member httpsfv.Member) (string, *httpsfv.Params, bool) {
	item, ok := member.(httpsfv.Item)
	if !ok {
		return "", nil, false
	}
	switch name := item.Value.(type) {
	case string:
		return name, item.Params, true
	case httpsfv.Token:
		return string(name), item.Params, true
	}
	return "", nil, false
}

func ietfNumber(params *httpsfv.Params, key string) (int64, bool) {
	if params == nil {
		return 0, false
	}
	value, ok := params.Get(key)
	if !ok {
		return 0, false
	}
	return ietfTokens(value)
}

// ietfTokens returns a number that makes sense, or zero.
func ietfTokens(value any) (int64, bool) {
	number, ok := value.(int64)
	if !ok || number < 0 || number > mostTokens {
		return 0, false
	}
	return number, true
}

func ietfSeconds(params *httpsfv.Params, key string) time.Duration {
	number, _ := ietfNumber(params, key)
	return seconds(number)
}

// seconds is a number of them, at most Longest.
func seconds(number int64) time.Duration {
	return time.Duration(min(number, int64(Longest/time.Second))) * time.Second
}
