// Package lua holds the scripts that decide inside Redis, and nothing else. Each
// operation is a file with its contract on top: keys, arguments with units,
// reply, whether a blind retry is safe, and the oldest server it runs on. What
// operations share stands once, in fragments.
package lua

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua fragments/*.lua
var files embed.FS

// Limit is one limit of a policy, as fragments/policy.lua says.
type Limit struct {
	// Algorithm is the name of a fragment.
	Algorithm string
	Count     int64
	PeriodUS  int64
	Capacity  int64
	// Option and Extra are what the algorithm says.
	Option string
	Extra  int64
	// Value is which value of a row counts at this limit, from 1; 0 for none. See
	// fragments/line.lua.
	Value int
	// Kept is how many tokens are for urgent requests alone.
	Kept int64
}

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
	logOnly := read("fragments/sliding_log.lua") + read("fragments/sliding_log_back.lua")
	inLine := onPolicy + read("fragments/line.lua")
	hand := read("fragments/line_hand.lua")
	tell := hand + read("fragments/line_tell.lua")
	joining := inLine + read("fragments/line_join.lua")
	return Scripts{
		Reserve:   redis.NewScript(onPolicy + "local line\n" + read("reserve.lua")),
		Ask:       redis.NewScript(joining + hand + read("fragments/line_stand.lua") + read("reserve.lua")),
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

// policy returns the algorithms of limits, each with what the operation needs of it
// besides; the limits; and what every operation on them begins with.
func policy(limits []Limit, besides ...string) string {
	var text, rows strings.Builder
	var known []string
	text.WriteString(kept(limits) + "local algorithms = {}\n")
	for _, l := range limits {
		if !slices.Contains(known, l.Algorithm) {
			known = append(known, l.Algorithm)
			text.WriteString("do\n") // Lua has room for 200 local names at a time
			for _, fragment := range algorithm(l.Algorithm, len(limits) > 1, besides) {
				text.WriteString(read("fragments/" + fragment + ".lua"))
			}
			fmt.Fprintf(&text, "algorithms.%s = %[1]s\nend\n", l.Algorithm)
		}
		fmt.Fprintf(&rows, "  { algorithm = algorithms.%s, count = %d, period_us = %d, capacity = %d, option = '%s', extra = %d, value = %d },\n",
			l.Algorithm, l.Count, l.PeriodUS, l.Capacity, l.Option, l.Extra, l.Value)
	}
	return text.String() + "local limits = {\n" + rows.String() + "}\n" + read("fragments/policy.lua")
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
		fragments = append(fragments, name+suffix)
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
