package throttletest

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEachServerRunsOnBoth(t *testing.T) {
	t.Parallel()
	redisPath(t)
	var mu sync.Mutex
	var ran []string
	t.Run("each", func(t *testing.T) {
		EachServer(t, func(t *testing.T, srv *Server) {
			info, err := srv.Client().Info(t.Context(), "server").Result()
			isReal := err == nil && strings.Contains(info, "process_id")
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, fmt.Sprintf("%s %t", t.Name(), isReal))
		})
	})
	assert.ElementsMatch(t, []string{
		"TestEachServerRunsOnBoth/each/embedded false",
		"TestEachServerRunsOnBoth/each/redis true",
	}, ran)
}

func TestAMissingRedisSkipsUnlessItIsRequired(t *testing.T) {
	t.Parallel()
	missing := fmt.Errorf("%w: install it", ErrNoRedisServer)
	for name, tt := range map[string]struct {
		err      error
		required string
		want     string
	}{
		"missing":              {missing, "", "skip: skipped on a real Redis: no redis-server found: install it"},
		"missing and required": {missing, "1", "fatal: RAMPMETER_REQUIRE_REDIS is set, but there is no redis-server found: install it"},
		"broken":               {errors.New("it broke"), "", "fatal: it broke"},
		"broken and required":  {errors.New("it broke"), "1", "fatal: it broke"},
	} {
		tb := &recordingTB{TB: t}
		done := make(chan struct{})
		go func() { // the end of a test ends its goroutine
			defer close(done)
			giveUp(tb, tt.err, func(name string) string {
				return map[string]string{"RAMPMETER_REQUIRE_REDIS": tt.required}[name]
			})
		}()
		<-done
		assert.Equal(t, tt.want, tb.end, name)
	}
}

// recordingTB is a test that remembers how it ended.
type recordingTB struct {
	testing.TB
	end string
}

func (r *recordingTB) Fatal(args ...any) { r.endWith("fatal: " + fmt.Sprint(args...)) }

func (r *recordingTB) Fatalf(format string, args ...any) {
	r.endWith("fatal: " + fmt.Sprintf(format, args...))
}

func (r *recordingTB) Skipf(format string, args ...any) {
	r.endWith("skip: " + fmt.Sprintf(format, args...))
}

func (r *recordingTB) endWith(end string) {
	r.end = end
	runtime.Goexit()
}

func TestUniqueName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		name := UniqueName(t)
		require.Regexp(t, regexp.MustCompile(`^testuniquename-[a-z2-7]{12}$`), name)
		seen[name] = true
	}
	assert.Len(t, seen, 100)

	t.Run("Of A_Subtest {with} a name that never seems to end", func(t *testing.T) {
		t.Parallel()
		assert.Regexp(t, `^testuniquename-of-a-subtest--with--a-nam-[a-z2-7]{12}$`, UniqueName(t))
	})
}
