// Package lua holds the scripts that decide inside Redis, and nothing else. Each
// operation is a file with its contract on top: keys, arguments with units,
// reply, whether a blind retry is safe, and the oldest server it runs on. What
// operations share stands once, in fragments.
package lua

import (
	"embed"
	"slices"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua fragments/*.lua
var files embed.FS

// Scripts are the operations. All are atomic, do bounded work, and are loaded into
// a server on first use and again after a SCRIPT FLUSH.
type Scripts struct {
	Reserve, Peek, Cancel, Adjust, Park, Freeze, Renew, Release, Recent, Reconcile *redis.Script
}

// New returns the operations for a policy whose limits have these algorithms: each
// is the name of a fragment. Only what is named is part of the scripts, for every
// function costs time at every call.
func New(algorithms ...string) Scripts {
	return WithClock(read("fragments/clock.lua"), algorithms...)
}

// WithClock returns the operations with another source of time than Redis's own
// TIME, for tests that have to say what time it is on a real server: Lua text that
// defines now_us, int and ttl_ms as fragments/clock.lua does.
func WithClock(clock string, algorithms ...string) Scripts {
	shared := clock + read("fragments/algorithms.lua")
	onPolicy := shared
	slices.Sort(algorithms) // equal policies share their scripts
	for _, name := range slices.Compact(algorithms) {
		onPolicy += read("fragments/" + name + ".lua")
	}
	onPolicy += read("fragments/policy.lua")
	about := "" // what is kept about an upstream, and how it learns
	for _, name := range []string{"upstream", "pace"} {
		about += read("fragments/"+name+".lua") + read("fragments/"+name+"_hear.lua")
	}
	return Scripts{
		Reserve:   redis.NewScript(onPolicy + read("reserve.lua")),
		Peek:      redis.NewScript(onPolicy + read("peek.lua")),
		Cancel:    redis.NewScript(onPolicy + read("cancel.lua")),
		Adjust:    redis.NewScript(onPolicy + read("adjust.lua")),
		Renew:     redis.NewScript(onPolicy + read("renew.lua")),
		Release:   redis.NewScript(onPolicy + read("release.lua")),
		Reconcile: redis.NewScript(shared + about + read("fragments/policy.lua") + read("reconcile.lua")),
		Recent:    redis.NewScript(shared + read("fragments/sliding_log.lua") + read("recent.lua")),
		Park:      redis.NewScript(clock + read("park.lua")),
		Freeze:    redis.NewScript(clock + read("freeze.lua")),
	}
}

func read(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("lua: " + err.Error()) // the embedded files are part of the build
	}
	return string(text)
}
