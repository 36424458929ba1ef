package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

const upstreamFile = `
policies:
  github:
    limits:
      - {name: hourly, algorithm: fixed_window, rate: 100/1h, per: installation}
    upstream: github
`

func TestFreezeAndUnfreeze(t *testing.T) {
	t.Parallel()
	throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
		path := file(t, "policies.yaml", upstreamFile)
		limiter := limiterOn(t, srv, path)
		heldBy := func(installation string) string {
			d, err := limiter.Peek(t.Context(), throttle.Request{
				Policy: "github", Attributes: map[string]string{"installation": installation},
			})
			require.NoError(t, err)
			return d.HeldBy
		}
		command := func(name string, args ...string) result {
			return enqueue(t, append([]string{name, "-redis", srv.URI(), "-config", path}, args...)...)
		}

		assert.Equal(t, result{program.OK, "frozen for 10m0s: policy github\n", ""}, command("freeze", "github", "10m"))
		assert.Equal(t, "freeze", heldBy("42"))
		assert.Equal(t, result{program.OK, "open: policy github\n", ""}, command("unfreeze", "github"))
		assert.Empty(t, heldBy("42"))

		key := []string{"-limit", "hourly", "-attr", "installation=42", "github"}
		got := command("freeze", append(key, "1m")...)
		assert.Equal(t, result{program.OK, "frozen for 1m0s: limit hourly of policy github, installation=42\n", ""}, got)
		assert.Equal(t, "hourly/upstream", heldBy("42"))
		assert.Empty(t, heldBy("43"))
		assert.Contains(t, command("status", "-attr", "installation=42").out, "the upstream leaves 0")
		assert.Equal(t, program.OK, command("unfreeze", key...).code)
		assert.Empty(t, heldBy("42"))

		assert.Contains(t, command("freeze", "gitlab", "1m").err, `unknown policy "gitlab"`)
		assert.Contains(t, command("freeze", "-limit", "hourly", "github", "1m").err, `attribute "installation" is missing`)
	})
}

func TestFreezeUsage(t *testing.T) {
	t.Parallel()
	for problem, args := range map[string][]string{
		"no policy: name":            {"freeze"},
		"no time: say":               {"freeze", "github"},
		`"soon" is no time`:          {"freeze", "github", "soon"},
		`"-1s" is no time`:           {"freeze", "github", "--", "-1s"},
		`unexpected argument "1m"`:   {"unfreeze", "github", "1m"},
		"no policies file":           {"unfreeze", "github"},
		`unexpected argument "more"`: {"freeze", "github", time.Minute.String(), "more"},
	} {
		got := enqueue(t, args...)
		assert.Equal(t, program.Usage, got.code, args)
		assert.Contains(t, got.err, problem)
	}
}
