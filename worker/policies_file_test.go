package worker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

const (
	tenPerSecond = `
policies:
  api:
    limits:
      - {name: calls, algorithm: token_bucket, rate: 10/s}
routes:
  - {task: "call", policy: api}
`
	twentyPerSecond = `
policies:
  api:
    limits:
      - {name: calls, algorithm: token_bucket, rate: 20/s, burst: 5}
    max_wait: 5s
  new:
    limits:
      - {name: at-once, algorithm: concurrency, slots: 3}
routes:
  - {task: "call", policy: api}
  - {task: "new:*", policy: new}
`
)

var (
	brokenPolicies = strings.Replace(tenPerSecond, "10/s", "none", 1)
	degrading      = strings.Replace(tenPerSecond, "routes:", "    overload: degrade\nroutes:", 1)
	otherAlgorithm = strings.Replace(tenPerSecond, "token_bucket", "sliding_log", 1)
)

// watched is a Middleware that watches a file, and what it tells.
type watched struct {
	*Middleware
	t        *testing.T
	path     string
	logs     *observer.ObservedLogs
	registry *prometheus.Registry
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.yaml"), logs: logs, registry: prometheus.NewRegistry()}
	w.write(tenPerSecond)
	policies, err := policy.ReadFile(w.path)
	require.NoError(t, err)
	limiter, err := throttle.New(throttletest.Embedded(t).Client(), policies)
	require.NoError(t, err)
	w.Middleware, err = NewMiddleware(MiddlewareConfig{
		Limiter: limiter, PoliciesFile: w.path, Logger: zap.New(core), Registerer: w.registry,
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	return w
}

func (w *watched) write(content string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(w.path, []byte(content), 0o600))
}

// look looks at the file as often as it takes for a change to be taken.
func (w *watched) look() {
	w.file.poll()
	w.file.poll()
}

// rate is what api's limit is now.
func (w *watched) rate() string { return w.limiter.Config().Policy("api").Limits[0].Rate.String() }

// metric returns the value of a gauge.
func (w *watched) metric(name string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	require.NoError(w.t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.Fail(w.t, "no metric "+name)
	return 0
}

func (w *watched) succeeded() float64 { return w.metric("rampmeter_policies_last_reload_successful") }
func (w *watched) succeededAt() float64 {
	return w.metric("rampmeter_policies_last_reload_success_timestamp_seconds")
}

func TestFileIsTakenWhenItChanges(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.look()
	assert.Empty(t, w.logs.TakeAll(), "it is what was read at the start")

	w.write(twentyPerSecond)
	w.file.poll()
	assert.Equal(t, "10/1s", w.rate(), "it may be half written")
	w.file.poll()
	assert.Equal(t, "20/1s", w.rate())
	told := w.logs.TakeAll()
	require.Len(t, told, 1)
	assert.Equal(t, "policies updated", told[0].Message)
	assert.Equal(t, []any{
		"api: calls.burst: now 5",
		"api: calls.rate: 10/1s, now 20/1s",
		"api: max_wait: 1s, now 5s",
		"new: added",
		"routes: [call to api], now [call to api, new:* to new]",
	}, told[0].ContextMap()["changes"])

	w.look()
	assert.Empty(t, w.logs.TakeAll(), "nothing is new")
	w.write(tenPerSecond)
	w.look()
	assert.Contains(t, w.logs.TakeAll()[0].ContextMap()["changes"], "new: removed")
	assert.Nil(t, w.limiter.Config().Policy("new"))
}

func TestFileThatCanNotBeUsed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(*watched)
		says  string
	}{
		"broken": {func(w *watched) { w.write(brokenPolicies) }, ":5: policies.api.limits[0].rate: "},
		"empty":  {func(w *watched) { w.write("") }, "the file is empty"},
		"gone":   {func(w *watched) { require.NoError(w.t, os.Remove(w.path)) }, "no such file"},
		"a directory": {func(w *watched) {
			require.NoError(w.t, os.Remove(w.path))
			require.NoError(w.t, os.Mkdir(w.path, 0o700))
		}, "directory"},
		"without a fallback": {func(w *watched) { w.write(degrading) }, `Fallbacks["api"]`},
		"another algorithm":  {func(w *watched) { w.write(otherAlgorithm) }, "policies.yaml: policies.api.limits[0].algorithm: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t)
			w.look()
			succeededAt := w.succeededAt()
			assert.Positive(t, succeededAt)
			assert.InDelta(t, 1, w.succeeded(), 0)

			before := w.limiter.Config()
			test.spoil(w)
			w.file.poll()
			assert.Empty(t, w.logs.TakeAll(), "it may be half written")
			w.look()
			w.look()
			told := w.logs.TakeAll()
			require.Len(t, told, 1, "once")
			assert.Equal(t, zapcore.ErrorLevel, told[0].Level)
			assert.Contains(t, told[0].ContextMap()["error"], test.says)
			assert.Equal(t, w.path, told[0].ContextMap()["file"])
			assert.Equal(t, before, w.limiter.Config())
			assert.InDelta(t, 0, w.succeeded(), 0)
			assert.InDelta(t, succeededAt, w.succeededAt(), 0)

			require.NoError(t, os.RemoveAll(w.path))
			w.write(tenPerSecond)
			w.look()
			assert.InDelta(t, 1, w.succeeded(), 0)
			assert.Equal(t, "the policies file can be used again, nothing has changed", w.logs.TakeAll()[0].Message)
			w.write(twentyPerSecond)
			w.look()
			assert.Equal(t, "20/1s", w.rate())
		})
	}
}

// A Kubernetes ConfigMap is a link to a link that is turned to another directory.
func TestFileBehindLinks(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	mount := t.TempDir()
	version := func(name, content string) {
		dir := filepath.Join(mount, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "policies.yaml"), []byte(content), 0o600))
		require.NoError(t, os.Symlink(name, filepath.Join(mount, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
	}
	version("..1", tenPerSecond)
	w.file.path = filepath.Join(mount, "policies.yaml")
	require.NoError(t, os.Symlink(filepath.Join("..data", "policies.yaml"), w.file.path))
	w.look()
	version("..2", twentyPerSecond)
	w.look()
	assert.Equal(t, "20/1s", w.rate())
}

func TestReload(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.write(twentyPerSecond)
	require.NoError(t, w.Reload())
	assert.Equal(t, "20/1s", w.rate(), "at once")
	w.write(brokenPolicies)
	require.ErrorAs(t, w.Reload(), new(*policy.ConfigError))
	assert.Equal(t, "20/1s", w.rate())
	assert.Equal(t, 1, w.logs.FilterLevelExact(zapcore.ErrorLevel).Len())

	none, err := NewMiddleware(MiddlewareConfig{Limiter: w.limiter})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, none.Close()) })
	require.ErrorIs(t, none.Reload(), errNoFile)
}

// Every key that a policy can have is told when it changes.
func TestEveryChangeIsTold(t *testing.T) {
	t.Parallel()
	rate := policy.Rate{Count: 1, Period: 1}
	full := policy.Policy{
		Name: "api", Lane: "l", Weights: map[string]int64{"a": 2}, Weight: "w", MaxWait: 1, MaxDefer: 1,
		Overload: policy.OverloadReject,
		Upstream: &policy.Upstream{API: policy.APIGitHub, Headroom: 1, Quotas: map[string]string{"q": "l"}, MaxFreeze: 1},
		Limits: []policy.Limit{{
			Name: "l", Algorithm: policy.TokenBucket, Rate: rate, Burst: 1, Anchor: policy.AnchorFirst,
			Refill: policy.RefillInterval, Precision: 1, Slots: 1, Lease: 1, Per: "p", Cost: "c",
			Headroom: policy.Headroom{Tokens: 1, Percent: 1},
		}},
	}
	changes := changesOf(
		&policy.Config{Policies: []policy.Policy{{Name: "api", Limits: []policy.Limit{{Name: "l"}}}}},
		&policy.Config{Policies: []policy.Policy{full}},
	)
	assert.Equal(t, []string{
		"api: l.algorithm: now token_bucket", "api: l.anchor: now first", "api: l.burst: now 1", "api: l.cost: now c",
		"api: l.headroom: now 1%", "api: l.lease: now 1ns", "api: l.per: now p", "api: l.precision: now 1ns",
		"api: l.rate: now 1/1ns", "api: l.refill: now interval", "api: l.slots: now 1", "api: lane: now l",
		"api: max_defer: now 1ns", "api: max_wait: 1s, now 1ns", "api: overload: now reject", "api: upstream: now github",
		"api: upstream.headroom: now 1", "api: upstream.max_freeze: now 1ns", "api: upstream.quotas: now map[q:l]",
		"api: weight: now w", "api: weights: now map[a:2]",
	}, changes)
}
