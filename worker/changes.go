package worker

import (
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
		changes = append(changes, differences(policy.Name, was.Settings(), policy.Settings())...)
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

func routes(list []policy.Route) string {
	texts := make([]string, len(list))
	for i, route := range list {
		texts[i] = route.Task + " to " + route.Policy
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
