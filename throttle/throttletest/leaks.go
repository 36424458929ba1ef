package throttletest

import (
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

// Main runs the tests of a package, for its TestMain, and fails if they leave a
// goroutine behind. It silences go-redis, which logs every lost connection to the
// standard error of the whole process, whichever test it was that cut it.
func Main(m *testing.M) {
	logging.Disable()
	goleak.VerifyTestMain(m,
		// After refused connections go-redis asks once a second whether the server
		// is back; it notices that its pool was closed at its next turn, not at once.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
