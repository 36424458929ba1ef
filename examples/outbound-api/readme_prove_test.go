//go:build prove

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
)

// The test program is its own worker, as the example is.
func TestMain(m *testing.M) {
	if os.Getenv(jobVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// README, «See it»: three workers, one API, one quota; not a call too many on any
// machine.
func TestProveExample(t *testing.T) {
	prove.Figures(t, func(t *testing.T) []prove.Figure {
		o := &options{tasks: 800, workers: 3}
		got, err := demonstrate(t.Context(), o, t.Output())
		require.NoError(t, err)
		require.Equal(t, o.tasks, got.done)
		require.Equal(t, o.tasks, got.calls-got.over, "each task calls once")
		return []prove.Figure{
			prove.AtMost("example: calls over the quota", float64(got.over), 0, ""),
			prove.AtLeast("example: quota used", got.used, 97, "%"),
			prove.AtMost("example: attempts per task", float64(got.attempts)/float64(got.done), 1.02, ""),
			prove.Took("example: all done", got.took, got.ideal*105/100),
		}
	})
}
