// Package lua holds the scripts that decide inside Redis, and nothing else. Each
// operation is a file with its contract on top: keys, arguments with units,
// reply, whether a blind retry is safe, and the oldest server it runs on. What
// operations share stands once, in fragments.
package lua

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua fragments/*.lua
var files embed.FS

// Scripts are the operations. All are atomic, do bounded work, and are loaded into
// a server on first use and again after a SCRIPT FLUSH.
type Scripts struct {
	Reserve, Peek, Cancel, Adjust, Freeze, Renew, Release, Recent, Reconcile, Refused *redis.Script
	// Ask is Reserve for tasks that join the policy's waiting line when they are
	// denied, Wake what calls them from there. Review has them looked at anew, and Recall
	// those of a line that is not served any more.
	Ask, Wake, Review, Recall *redis.Script
	// LookAhead tells where tasks would stand in line, Join puts them there.
	LookAhead, Join *redis.Script
}

// New returns the operations for a policy with these limits. They are part of the
// scripts' text, and only the algorithms they have are: reading numbers, and
// making functions, costs time at every call.
func New(limits ...Limit) Scripts {
	return WithClock(read("fragments/clock.lua"), limits...)
}

// WithClock returns the operations with another source of time than Redis's own
// TIME, for tests that have to say what time it is on a real server: Lua text that
// defines now_us, int and ttl_ms as fragments/clock.lua does.
func WithClock(clock string, limits ...Limit) Scripts {
	onPolicy, onReceipts := clock+policy(limits), clock+policy(limits, "_back")
	// Renewing and releasing is about leases alone.
	onLeases := clock + policy(only(limits, "concurrency"), "_back")
	onUpstream := clock + policy(only(limits, "upstream", "pace"), "_back", "_hear")
	logOnly := read("fragments/sliding_log.lua")
	inLine := onPolicy + read("fragments/line.lua")
	hand := read("fragments/line_hand.lua")
	tell := hand + read("fragments/line_tell.lua")
	joining := inLine + read("fragments/line_join.lua")
	return Scripts{
		Reserve:   redis.NewScript(opening(clock) + shortcut(limits) + reserve(limits)),
		Ask:       redis.NewScript(joining + hand + read("fragments/line_stand.lua") + read("fragments/attempt.lua") + read("reserve.lua")),
		LookAhead: redis.NewScript(joining + "local joins = false\n" + read("park.lua")),
		Join:      redis.NewScript(joining + "local joins = true\n" + read("park.lua")),
		Wake:      redis.NewScript(inLine + wake()),
		Peek:      redis.NewScript(onPolicy + read("peek.lua")),
		Cancel:    redis.NewScript(onReceipts + tell + read("cancel.lua")),
		Adjust:    redis.NewScript(onReceipts + read("adjust.lua")),
		Renew:     redis.NewScript(onLeases + read("renew.lua")),
		Release:   redis.NewScript(onLeases + tell + read("release.lua")),
		Reconcile: redis.NewScript(onUpstream + read("reconcile.lua")),
		Recent:    redis.NewScript(clock + logOnly + read("recent.lua")),
		Freeze:    redis.NewScript(clock + read("freeze.lua")),
		Refused:   redis.NewScript(clock + read("refused.lua")),
		Review:    redis.NewScript(clock + read("review.lua")),
		Recall:    redis.NewScript(clock + read("recall.lua")),
	}
}

// opening returns what reserve begins with.
func opening(clock string) string {
	return clock + read("fragments/read.lua") + read("fragments/attempt.lua")
}

// reserve returns the rest of it, without a line.
func reserve(limits []Limit) string {
	return algorithms(limits) + "local line\n" + read("reserve.lua")
}

// wake returns what wakes the tasks of a line, idea by idea.
func wake() string {
	var text strings.Builder
	for _, idea := range []string{"rows", "tickets", "lanes", "serve", "write"} {
		text.WriteString(read("fragments/wake_" + idea + ".lua"))
	}
	return text.String() + read("wake.lua")
}

// only returns the limits that have one of these algorithms.
func only(limits []Limit, algorithms ...string) []Limit {
	return slices.DeleteFunc(slices.Clone(limits), func(limit Limit) bool {
		return !slices.Contains(algorithms, limit.Algorithm)
	})
}

// policy returns what every operation on these limits begins with.
func policy(limits []Limit, besides ...string) string {
	return read("fragments/read.lua") + algorithms(limits, besides...)
}

// algorithms returns the limits and their algorithms, each with what the operation needs
// of it besides.
func algorithms(limits []Limit, besides ...string) string {
	var text strings.Builder
	text.WriteString(kept(limits) + "local algorithms = {}\n")
	for _, name := range algorithmsOf(limits) {
		text.WriteString("do\n") // Lua has room for 200 local names at a time
		for _, fragment := range algorithm(name, len(limits) > 1, besides) {
			text.WriteString(read("fragments/" + fragment + ".lua"))
		}
		fmt.Fprintf(&text, "algorithms.%s = %[1]s\nend\n", name)
	}
	text.WriteString("local limits = {\n")
	for _, limit := range limits {
		fmt.Fprintf(&text, "  { algorithm = algorithms.%s, %s },\n", limit.Algorithm, limit.numbers())
	}
	return text.String() + "}\n" + read("fragments/policy.lua")
}

// algorithmsOf returns the algorithms of limits, each once.
func algorithmsOf(limits []Limit) []string {
	var names []string
	for _, limit := range limits {
		if !slices.Contains(names, limit.Algorithm) {
			names = append(names, limit.Algorithm)
		}
	}
	return names
}

// shortcut returns what answers simple calls at once, or nothing if a limit has no
// shortcut.
func shortcut(limits []Limit) string {
	var fragments, cases strings.Builder
	for i, limit := range limits {
		numbers, there := limit.shortcut()
		if !there {
			return ""
		}
		fmt.Fprintf(&cases, "  if i == %d then\n    return shortcuts.%s(raw, cost, times, %s)\n  end\n", i+1, limit.Algorithm, numbers)
	}
	for _, name := range algorithmsOf(limits) {
		fragments.WriteString(read("fragments/" + name + "_shortcut.lua"))
	}
	return "local shortcuts = {}\n" + fragments.String() +
		"local function by_shortcut(i, raw, cost, times)\n" + cases.String() + "end\n" +
		fmt.Sprintf("local limits_in_all, reply = %d, { 0, 0, 0, 0, 0, 0%s }\n", len(limits), strings.Repeat(", 0, 0, 0, 0", len(limits))) +
		read("fragments/shortcut.lua")
}

// algorithm returns the fragments that make up an algorithm, in their order.
func algorithm(name string, hasOthers bool, besides []string) []string {
	fragments := []string{name}
	switch {
	case name == "sliding_window":
		fragments = []string{"buckets", name}
	case name == "token_bucket" && hasOthers:
		fragments = []string{name, "put_off"}
	}
	for _, suffix := range besides {
		if _, err := fs.Stat(files, "fragments/"+name+suffix+".lua"); err == nil { // or else it stands in the algorithm's own
			fragments = append(fragments, name+suffix)
		}
	}
	return fragments
}

// kept returns the table of what each limit keeps for urgent requests: nil for nothing
// at all.
func kept(limits []Limit) string {
	numbers, sum := "", int64(0)
	for i := range limits {
		numbers += fmt.Sprintf("%d, ", limits[i].Kept)
		sum += limits[i].Kept
	}
	if sum == 0 {
		return "local kept\n"
	}
	return "local kept = { " + numbers + "}\n" + read("fragments/spare.lua")
}

func read(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("lua: " + err.Error()) // the embedded files are part of the build
	}
	return string(text)
}
