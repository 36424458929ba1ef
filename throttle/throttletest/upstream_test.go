package throttletest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newUpstream(t *testing.T, cfg UpstreamConfig) *Upstream {
	t.Helper()
	u, err := NewUpstream(cfg)
	require.NoError(t, err)
	return u
}

// call makes a GET to target in-process, with headers as name, value, ...
func call(ctx context.Context, u *Upstream, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	u.ServeHTTP(w, r)
	return w
}

func TestUpstreamAnswersLikeGitHub(t *testing.T) {
	t.Parallel()
	clock := NewClock(noon.Add(200 * ms))
	u := newUpstream(t, UpstreamConfig{
		Quota: &Quota{Limit: 2, Window: 10 * time.Second},
		Now:   clock.Now,
	})
	// Made at noon and 200 ms, with windows from there: what a whole second can
	// not tell is rounded up.
	reset := func(window int) string { return strconv.FormatInt(noon.Unix()+int64(window)*10+1, 10) }

	for i, want := range []struct {
		advance                            time.Duration
		status                             int
		remaining, used, reset, retryAfter string
	}{
		{0, 200, "1", "1", reset(1), ""},
		{time.Second, 200, "0", "2", reset(1), ""},
		{time.Second, 429, "0", "2", reset(1), "8"},
		{7*time.Second + 999*ms, 429, "0", "2", reset(1), "1"},
		{ms, 200, "1", "1", reset(2), ""},
	} {
		clock.Advance(want.advance)
		res := call(t.Context(), u, "/users/7")
		got := map[string]string{}
		for _, name := range []string{
			"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-used",
			"x-ratelimit-reset", "x-ratelimit-resource", "retry-after",
		} {
			got[name] = res.Header().Get(name)
		}
		assert.Equal(t, want.status, res.Code, "call %d", i)
		assert.Equal(t, map[string]string{
			"x-ratelimit-limit": "2", "x-ratelimit-remaining": want.remaining, "x-ratelimit-used": want.used,
			"x-ratelimit-reset": want.reset, "x-ratelimit-resource": "core", "retry-after": want.retryAfter,
		}, got, "call %d", i)
	}
	assert.Equal(t, 5, u.Count())
	assert.Equal(t, 3, u.Accepted())
	assert.Equal(t, 2, u.Over())
}

func TestUpstreamRecordsEveryCall(t *testing.T) {
	t.Parallel()
	clock := NewClock(noon)
	u := newUpstream(t, UpstreamConfig{
		Quota: &Quota{Limit: 1, Window: time.Minute},
		Key:   "Installation",
		Now:   clock.Now,
	})
	call(t.Context(), u, "/a?n=1", "X-Task-Id", "t1", "installation", "42")
	clock.Advance(time.Second)
	call(t.Context(), u, "/b", "Installation", "42")
	call(t.Context(), u, "/c?Installation=43")
	u.FailNext(1, 503, nil)
	call(t.Context(), u, "/d", "Installation", "43")

	assert.Equal(t, []Call{
		{Arrived: noon, Key: "42", TaskID: "t1", Method: "GET", URL: "/a?n=1", Status: 200},
		{Arrived: noon.Add(time.Second), Key: "42", Method: "GET", URL: "/b", Status: 429, Over: true},
		{Arrived: noon.Add(time.Second), Key: "43", Method: "GET", URL: "/c?Installation=43", Status: 200},
		{Arrived: noon.Add(time.Second), Key: "43", Method: "GET", URL: "/d", Status: 503},
	}, u.Calls())
	assert.Equal(t, 2, MaxPerWindow(u.Arrivals()[:2], time.Minute, noon))

	calls := u.Calls()
	calls[0].Key = "changed"
	assert.Equal(t, "42", u.Calls()[0].Key, "Calls should return a copy")
}

func TestUpstreamWithoutQuotaOnlyRecords(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, UpstreamConfig{})
	began := time.Now()
	for range 100 {
		res := call(t.Context(), u, "/")
		require.Equal(t, 200, res.Code)
		require.Empty(t, res.Header().Get("X-Ratelimit-Limit"))
	}
	assert.Len(t, u.Calls(), 100)
	assert.Equal(t, 100, u.Accepted())
	assert.False(t, u.Arrivals()[0].Before(began), "it goes by real time")
}

func TestUpstreamFailsOnDemand(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, UpstreamConfig{Quota: &Quota{Limit: 1, Window: time.Hour, Burst: 1}})
	header := http.Header{}
	header.Set("Retry-After", "7")
	u.FailNext(2, 503, header)
	u.FailNext(1, 429, nil)
	u.FailNext(0, 500, nil)
	u.FailNext(-1, 500, nil)
	header.Set("Retry-After", "changed")

	first := call(t.Context(), u, "/")
	assert.Equal(t, 503, first.Code)
	assert.Equal(t, "7", first.Header().Get("Retry-After"))
	assert.Equal(t, 503, call(t.Context(), u, "/").Code)
	assert.Equal(t, 429, call(t.Context(), u, "/").Code)
	assert.Equal(t, 200, call(t.Context(), u, "/").Code, "failures should take nothing from the quota")
	assert.Equal(t, 429, call(t.Context(), u, "/").Code)
	assert.Equal(t, []int{5, 1, 1}, []int{u.Count(), u.Accepted(), u.Over()})
}

func TestUpstreamKeepsTheLatest(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, UpstreamConfig{Keep: 3})
	for i := range 11 {
		call(t.Context(), u, "/"+strconv.Itoa(i))
		require.LessOrEqual(t, len(u.calls), 6, "the records grow for ever")
	}
	var urls []string
	for _, c := range u.Calls() {
		urls = append(urls, c.URL)
	}
	assert.Equal(t, []string{"/8", "/9", "/10"}, urls)
	assert.Equal(t, 11, u.Count())
}

func TestUpstreamWaitCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, UpstreamConfig{})
		require.NoError(t, u.WaitCalls(t.Context(), 0))

		done := make(chan error, 1)
		go func() { done <- u.WaitCalls(t.Context(), 2) }()
		for range 2 {
			synctest.Wait()
			require.Empty(t, done, "it should still wait")
			call(t.Context(), u, "/")
		}
		require.NoError(t, <-done)
		require.NoError(t, u.WaitCalls(t.Context(), 1), "those that came before count")

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := u.WaitCalls(ctx, 3)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "waited for 3 calls, saw 2")
	})
}

func TestUpstreamTakesItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, UpstreamConfig{Latency: 30 * ms})
		begin := time.Now()
		call(t.Context(), u, "/")
		assert.Equal(t, 30*ms, time.Since(begin))
		assert.Equal(t, begin, u.Arrivals()[0], "a call counts when it arrives")

		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		begin = time.Now()
		call(ctx, u, "/")
		assert.Equal(t, 10*ms, time.Since(begin), "a caller that hung up should be let go")
		assert.Equal(t, 2, u.Count())
	})
}

func TestUpstreamUnderLoad(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, UpstreamConfig{Quota: &Quota{Limit: 30, Window: time.Hour}})
	web := httptest.NewServer(u)
	defer web.Close()
	defer web.Client().CloseIdleConnections()

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL, nil)
				assert.NoError(t, err)
				res, err := web.Client().Do(req)
				if assert.NoError(t, err) {
					_, err = io.Copy(io.Discard, res.Body)
					assert.NoError(t, err)
					assert.NoError(t, res.Body.Close())
				}
			}
		})
	}
	require.NoError(t, u.WaitCalls(t.Context(), 80))
	wg.Wait()
	assert.Equal(t, []int{80, 30, 50}, []int{u.Count(), u.Accepted(), u.Over()})
	times := u.Arrivals()
	for i := 1; i < len(times); i++ {
		require.False(t, times[i].Before(times[i-1]), "calls should be in order of arrival")
	}
}

func TestNewUpstreamNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := NewUpstream(UpstreamConfig{Latency: -1, Keep: -2, Quota: &Quota{Window: time.Second}})
	require.ErrorContains(t, err, "latency is -1ns")
	require.ErrorContains(t, err, "keep is -2")
	require.ErrorContains(t, err, "quota limit is 0")
}

// Somebody else's calls count, and are told of, but are not recorded; a closed
// upstream refuses all; a silent one tells nothing.
func TestSpendCloseAndSilence(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	cfg := UpstreamConfig{Quota: &Quota{Limit: 5, Window: time.Minute}, Now: func() time.Time { return now }}
	u := newUpstream(t, cfg)
	assert.Equal(t, 3, u.Spend("", 3))
	assert.Equal(t, "1", call(t.Context(), u, "/").Header().Get("X-Ratelimit-Remaining"))
	u.CloseFor(1500 * time.Millisecond)
	refused := call(t.Context(), u, "/")
	assert.Equal(t, http.StatusTooManyRequests, refused.Code)
	assert.Equal(t, "2", refused.Header().Get("Retry-After"))
	now = now.Add(1500 * time.Millisecond)
	assert.Equal(t, http.StatusOK, call(t.Context(), u, "/").Code)
	assert.Equal(t, 0, u.Spend("", 3))
	assert.Equal(t, 3, u.Count())

	cfg.Silent = true
	u = newUpstream(t, cfg)
	u.Spend("", 5)
	refused = call(t.Context(), u, "/")
	assert.Equal(t, http.StatusTooManyRequests, refused.Code)
	assert.Empty(t, refused.Header().Get("Retry-After")+refused.Header().Get("X-Ratelimit-Limit"))
}
