package conform

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m) }

func none(string) string { return "" }

// Ours hold what there is to hold. What peers break is told with an example.
func TestEachContenderIsJudged(t *testing.T) {
	t.Parallel()
	var stdout, stderr strings.Builder
	require.Equal(t, program.OK, Run(t.Context(), []string{"-stories", "3"}, none, &stdout, &stderr), stderr.String())
	verdicts := map[throttletest.Promise][]string{}
	for line := range strings.Lines(stdout.String()) {
		for _, p := range throttletest.Promises() {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), string(p)+" "); ok {
				verdicts[p] = strings.Fields(strings.ReplaceAll(rest, "not judged", "-"))
			}
		}
	}
	for _, p := range throttletest.Promises() {
		require.Len(t, verdicts[p], len(contenders()), stdout.String())
		assert.Equal(t, []string{"held", "held"}, verdicts[p][:2], "%s\n%s", p, stdout.String())
	}
	assert.Equal(t, []string{"broken", "held", "-"}, verdicts[throttletest.ImpossibleIsNever][2:])
	assert.Contains(t, stdout.String(), "\nredis_rate, the impossible is refused as never: broken\n  not refused as never\n")
	assert.Contains(t, stdout.String(), "\nulule/limiter, patience is rewarded: not judged\n  it tells whole seconds")
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"-stories is 0":          {"-stories", "0"},
		"-step is 1ns":           {"-step", "1ns"},
		"-step is 2s":            {"-step", "2s"},
		"nothing to do with":     {"redis_rate"},
		"invalid value \"many\"": {"-seed", "many"},
	} {
		var stdout, stderr strings.Builder
		assert.Equal(t, program.Usage, Run(t.Context(), args, none, &stdout, &stderr))
		assert.Contains(t, stderr.String(), want)
		assert.Empty(t, stdout.String())
	}
}
