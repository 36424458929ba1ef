package throttletest

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"
)

// patience is how long tests wait for what is to happen at all.
const patience = 2 * time.Minute

// asChild names the part that this test binary plays when a test starts it.
const asChild = "RAMPMETER_THROTTLETEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) == "owner" {
		os.Exit(ownServerUntilKilled(os.Stdin, os.Stdout, os.Stderr))
	}
	Main(m)
}

// ownServerUntilKilled is the part of the parent that is killed: it tells the
// server's address, and ends by itself if nobody kills it but its own parent ends.
func ownServerUntilKilled(stdin io.Reader, stdout, stderr io.Writer) int {
	srv, err := StartRedis(context.Background(), RedisConfig{})
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	defer srv.Close()
	fmt.Fprintln(stdout, srv.Addr())
	_, _ = io.Copy(io.Discard, stdin)
	return 0
}
