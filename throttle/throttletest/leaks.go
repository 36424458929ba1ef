package throttletest

import (
	"flag"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

// testsAtOnce is how many tests of a package run at once, unless -parallel says so: most
// of them wait for servers most of their time.
const testsAtOnce = "8"

// Main runs the tests of a package, for its TestMain, and fails if they leave a
// goroutine behind. Eight of them run at once, unless -parallel says otherwise. It
// silences go-redis, which logs every lost connection to the standard error of the whole
// process, whichever test it was that cut it.
func Main(m *testing.M) {
	logging.Disable()
	if err := flag.Set("test.parallel", testsAtOnce); err != nil {
		panic(err) // there is no such flag where no test runs
	}
	goleak.VerifyTestMain(m,
		// After refused connections go-redis asks once a second whether the server
		// is back; it notices that its pool was closed at its next turn, not at once.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
