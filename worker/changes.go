package worker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// changesOf tells what is different after an update, one text for each: as in
// `api: calls.rate: 5/1s, now 200/1s`.
func changesOf(before, after *policy.Config) []string {
	var changes []string
	for i := range after.Policies {
		policy := &after.Policies[i]
		was := before.Policy(policy.Name)
		if was == nil {
			changes = append(changes, policy.Name+": added")
			continue
		}
		changes = append(changes, differences(policy.Name, settings(was), settings(policy))...)
	}
	for i := range before.Policies {
		if name := before.Policies[i].Name; after.Policy(name) == nil {
			changes = append(changes, name+": removed")
		}
	}
	if !slices.Equal(before.Routes, after.Routes) {
		changes = append(changes, fmt.Sprintf("routes: %s, now %s", routes(before.Routes), routes(after.Routes)))
	}
	return changes
}

func differences(name string, before, after map[string]string) []string {
	all := maps.Clone(before)
	maps.Copy(all, after)
	var changes []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch was, is := before[key], after[key]; {
		case was == is:
		case was == "":
			changes = append(changes, fmt.Sprintf("%s: %s: now %s", name, key, is))
		case is == "":
			changes = append(changes, fmt.Sprintf("%s: %s: %s, now left out", name, key, was))
		default:
			changes = append(changes, fmt.Sprintf("%s: %s: %s, now %s", name, key, was, is))
		}
	}
	return changes
}

// settings are those of a policy that are not left out, by their keys in a policies
// file; those of a limit behind its name.
func settings(p *policy.Policy) map[string]string {
	all := map[string]string{}
	set := func(key string, value any) {
		if text := fmt.Sprint(value); !slices.Contains([]string{"", "0", "0s", "0/0s", "map[]"}, text) {
			all[key] = text
		}
	}
	set("lane", p.Lane)
	set("weights", p.Weights)
	set("weight", p.Weight)
	set("max_wait", p.Wait())
	set("max_defer", p.MaxDefer)
	set("overload", p.Overload)
	if u := p.Upstream; u != nil {
		set("upstream", cmp.Or(u.API, policy.APIAuto))
		set("upstream.headroom", u.Headroom)
		set("upstream.quotas", u.Quotas)
		set("upstream.max_freeze", u.MaxFreeze)
	}
	for i := range p.Limits {
		l := &p.Limits[i]
		set(l.Name+".algorithm", l.Algorithm)
		set(l.Name+".rate", l.Rate)
		set(l.Name+".burst", l.Burst)
		set(l.Name+".anchor", l.Anchor)
		set(l.Name+".refill", l.Refill)
		set(l.Name+".precision", l.Precision)
		set(l.Name+".slots", l.Slots)
		set(l.Name+".lease", l.Lease)
		set(l.Name+".per", l.Per)
		set(l.Name+".cost", l.Cost)
		set(l.Name+".headroom", l.Headroom.Tokens)
		set(l.Name+".headroom", percent(l.Headroom.Percent))
	}
	return all
}

func percent(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", n)
}

func routes(list []policy.Route) string {
	texts := make([]string, len(list))
	for i, route := range list {
		texts[i] = route.Task + " to " + route.Policy
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
