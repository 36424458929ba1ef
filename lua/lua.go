// Package lua holds the scripts that decide inside Redis, and nothing else. Each
// operation is a file with its contract on top: keys, arguments with units,
// reply, whether a blind retry is safe, and the oldest server it runs on. What
// operations share stands once, in fragments.
package lua

import (
	"embed"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed *.lua fragments/*.lua
var files embed.FS

// The operations. All are atomic, do bounded work, and are loaded into a server
// on first use and again after a SCRIPT FLUSH.
var (
	Reserve = operation("reserve", policy...)
	Peek    = operation("peek", policy...)
	Cancel  = operation("cancel", policy...)
	Adjust  = operation("adjust", policy...)
	Park    = operation("park", "clock")
	Freeze  = operation("freeze", "clock")
)

// policy is what every operation on a policy shares: the algorithms, a file each,
// and what binds them together.
var policy = []string{"clock", "algorithms", "token_bucket", "fixed_window", "policy"}

// operation joins the fragments and the operation's own file into one script.
func operation(name string, fragments ...string) *redis.Script {
	var source strings.Builder
	for _, fragment := range fragments {
		source.WriteString(read("fragments/" + fragment + ".lua"))
	}
	source.WriteString(read(name + ".lua"))
	return redis.NewScript(source.String())
}

func read(path string) string {
	text, err := files.ReadFile(path)
	if err != nil {
		panic("lua: " + err.Error()) // the embedded files are part of the build
	}
	return string(text)
}
