package throttletest

import (
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, for its TestMain, and fails if they leave a
// goroutine behind.
func Main(m *testing.M) {
	goleak.VerifyTestMain(m,
		// After refused connections go-redis asks once a second whether the server
		// is back; it notices that its pool was closed at its next turn, not at once.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
