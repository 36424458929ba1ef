package policy

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
)

// keys are the keys of each kind of mapping in a policies file, in the order messages
// name them.
var keys = map[string][]string{
	"the file":    keysOfStruct(Config{}),
	"a policy":    keysOfStruct(Policy{}),
	"a limit":     keysOfStruct(Limit{}),
	"a headroom":  {PriorityHigh},
	"a route":     keysOfStruct(Route{}),
	"an upstream": keysOfStruct(Upstream{}),
}

func keysOfStruct(of any) (keys []string) {
	for field := range reflect.TypeOf(of).Fields() {
		if key := field.Tag.Get("key"); key != "" {
			keys = append(keys, key)
		}
	}
	return keys
}

// fieldFor returns a pointer to the field with that key of the struct that of points to,
// or nil.
func fieldFor(of any, key string) any {
	for field, value := range reflect.ValueOf(of).Elem().Fields() {
		if field.Tag.Get("key") == key {
			return value.Addr().Interface()
		}
	}
	return nil
}

// Settings are what the policy does not leave out, as text, by the keys of a policies file:
// those of a limit behind its name, as in hourly.rate. The max_wait is there with its default.
func (p *Policy) Settings() map[string]string {
	all := settings("", *p)
	delete(all, "limits")
	all["max_wait"] = p.Wait().String()
	if u := p.Upstream; u != nil {
		maps.Copy(all, settings("upstream.", *u))
		delete(all, "upstream.api")
		all["upstream"] = string(cmp.Or(u.API, APIAuto))
	}
	for _, l := range p.Limits {
		maps.Copy(all, settings(l.Name+".", l))
		delete(all, l.Name+".name")
	}
	return all
}

func settings(prefix string, of any) map[string]string {
	set := map[string]string{}
	for field, value := range reflect.ValueOf(of).Fields() {
		if key := field.Tag.Get("key"); key != "" && !value.IsZero() {
			set[prefix+key] = fmt.Sprint(value)
		}
	}
	return set
}
