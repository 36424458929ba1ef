package throttletest

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

// Embedded starts an embedded server for one test, which ends with the test. The test
// fails if it leaves keys there that [LastingKeys] tells of.
func Embedded(tb testing.TB) *Server {
	tb.Helper()
	return startFor(tb, EmbeddedConfig{})
}

// EmbeddedAt is Embedded with a clock that stands at t until the test moves it.
func EmbeddedAt(tb testing.TB, t time.Time) (*Server, *Clock) {
	tb.Helper()
	clock := NewClock(t)
	return startFor(tb, EmbeddedConfig{Clock: clock}), clock
}

func startFor(tb testing.TB, cfg EmbeddedConfig) *Server {
	tb.Helper()
	srv, err := StartEmbedded(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	closeAfter(tb, srv)
	return srv
}

// Redis starts a real redis-server for one test, which ends with the test; args
// are those of RedisConfig. On a machine without one it skips the test, unless
// the environment variable RAMPMETER_REQUIRE_REDIS is set: then the test fails. The
// test fails if it leaves keys there that [LastingKeys] tells of.
func Redis(tb testing.TB, args ...string) *Server {
	tb.Helper()
	srv, err := StartRedis(tb.Context(), RedisConfig{Args: args})
	if err != nil {
		giveUp(tb, err, os.Getenv)
	}
	closeAfter(tb, srv)
	return srv
}

// giveUp ends a test that has no server: by a skip only if the machine has none
// and none is required.
func giveUp(tb testing.TB, err error, getenv func(string) string) {
	tb.Helper()
	if !errors.Is(err, ErrNoRedisServer) {
		tb.Fatal(err)
	}
	if getenv("RAMPMETER_REQUIRE_REDIS") != "" {
		tb.Fatalf("RAMPMETER_REQUIRE_REDIS is set, but there is %v", err)
	}
	tb.Skipf("skipped on a real Redis: %v", err)
}

func closeAfter(tb testing.TB, srv *Server) {
	tb.Helper()
	tb.Cleanup(func() {
		reportLasting(tb, srv)
		if err := srv.Close(); err != nil {
			tb.Errorf("close redis: %v", err)
		}
	})
}

// scanTimeout bounds how long a server is looked through at the end of a test.
const scanTimeout = time.Minute

// reportLasting fails a test that left keys which never expire. What a test did to its
// server may keep it from answering, and then there is nothing to tell.
func reportLasting(tb testing.TB, srv *Server) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), scanTimeout)
	defer cancel()
	keys, err := LastingKeys(ctx, srv.client)
	if err != nil {
		tb.Logf("not looked for keys that never expire: %v", err)
	} else if len(keys) > 0 {
		tb.Errorf("keys were left that never expire: %q", keys)
	}
}

// EachServer runs a test twice, in parallel: as the subtest "embedded" on an
// embedded server and as "redis" on a real one. Each has its server to itself.
// Without a redis-server the second is skipped, or fails, as Redis says.
//
// The subtests start when the calling test function returns, so what they share
// must be ended by t.Cleanup, not by defer.
func EachServer(t *testing.T, test func(t *testing.T, srv *Server)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, Embedded(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, Redis(t))
	})
}

// uniqueNameLength leaves room for the test's name to be told, and no more.
const uniqueNameLength = 40

// UniqueName returns a name that nobody else has, for a policy, a queue or a key
// prefix on a server that several tests share. It begins with the test's name and
// has only small letters, digits and dashes.
func UniqueName(tb testing.TB) string {
	tb.Helper()
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(tb.Name()))
	if len(name) > uniqueNameLength {
		name = name[:uniqueNameLength]
	}
	return name + "-" + strings.ToLower(rand.Text()[:12])
}

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

// ownKeys matches the keys of Rampmeter.
const ownKeys = "rm:*"

// noExpiry is what go-redis makes of Redis's PTTL of a key that never expires.
const noExpiry = -1

// LastingKeys returns the keys of Rampmeter that never expire, in order. There should be
// none, whatever was done before. Keys of Rampmeter begin with "rm:"; the others are
// somebody else's.
func LastingKeys(ctx context.Context, client *redis.Client) ([]string, error) {
	const page = 200
	var lasting []string
	for cursor := uint64(0); ; {
		keys, next, err := client.Scan(ctx, cursor, ownKeys, page).Result()
		if err != nil {
			return nil, err
		}
		pipeline := client.Pipeline()
		lives := make([]*redis.DurationCmd, len(keys))
		for i, key := range keys {
			lives[i] = pipeline.PTTL(ctx, key)
		}
		if _, err := pipeline.Exec(ctx); err != nil {
			return nil, err
		}
		for i, key := range keys {
			if lives[i].Val() == noExpiry {
				lasting = append(lasting, key)
			}
		}
		if cursor = next; cursor == 0 {
			slices.Sort(lasting)
			return slices.Compact(lasting), nil // a scan may tell of a key twice
		}
	}
}
