// Package lua holds the scripts that decide inside Redis, and nothing else. Each
// operation is a file with its contract on top: keys, arguments with units,
// reply, whether a blind retry is safe, and the oldest server it runs on. What
// operations share stands once, in fragments.
package lua

import (
	"embed"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua fragments/*.lua
var files embed.FS

// Scripts are the operations. All are atomic, do bounded work, and are loaded into
// a server on first use and again after a SCRIPT FLUSH.
type Scripts struct {
	Reserve, Peek, Cancel, Adjust, Park, Freeze, Renew, Release *redis.Script
}

// New returns the operations.
func New() Scripts { return WithClock(read("fragments/clock.lua")) }

// WithClock returns the operations with another source of time than Redis's own
// TIME, for tests that have to say what time it is on a real server: Lua text that
// defines now_us, int and ttl_ms as fragments/clock.lua does.
func WithClock(clock string) Scripts {
	onPolicy := clock
	for _, fragment := range policy {
		onPolicy += read("fragments/" + fragment + ".lua")
	}
	return Scripts{
		Reserve: redis.NewScript(onPolicy + read("reserve.lua")),
		Peek:    redis.NewScript(onPolicy + read("peek.lua")),
		Cancel:  redis.NewScript(onPolicy + read("cancel.lua")),
		Adjust:  redis.NewScript(onPolicy + read("adjust.lua")),
		Park:    redis.NewScript(clock + read("park.lua")),
		Freeze:  redis.NewScript(clock + read("freeze.lua")),
		Renew:   redis.NewScript(onPolicy + read("renew.lua")),
		Release: redis.NewScript(onPolicy + read("release.lua")),
	}
}

// policy is what the operations on a policy share: the algorithms, a file each, and
// what binds them together.
var policy = []string{
	"algorithms",
	"token_bucket",
	"interval_bucket",
	"fixed_window",
	"concurrency",
	"policy",
}

func read(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("lua: " + err.Error()) // the embedded files are part of the build
	}
	return string(text)
}
