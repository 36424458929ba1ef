//go:build prove

package decisions

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/prove"
)

// README, «How it compares»: decisions made while redis_rate makes one. The bounds for one
// caller and for three limits are seven tenths of what it shows: so much do quiet machines
// differ.
func TestProveDecisions(t *testing.T) {
	least := map[string]map[int]float64{
		"token_bucket": {1: 0.69, 10: 2, 100: 8, 500: 12},
		"three limits": {1: 0.58, 10: 1.28, 100: 5, 500: 8.6},
	}
	prove.Figures(t, func(t *testing.T) (figures []prove.Figure) {
		args := []string{"-json", "-keys", "1", "-only", "^token_bucket$|^three limits$"}
		if testing.Short() {
			args = append(args, "-slice", "100ms")
		}
		var stdout, stderr strings.Builder
		require.Zero(t, Run(t.Context(), args, env{}.get, &stdout, &stderr), stderr.String())
		var got report
		require.NoError(t, json.Unmarshal([]byte(stdout.String()), &got))
		for _, cell := range got.Cells {
			require.Zero(t, cell.Errors, cell.AnyError)
			if bound := least[cell.Name][cell.Callers]; bound > 0 {
				name := fmt.Sprintf("%s, %d callers: decisions while redis_rate makes one", cell.Name, cell.Callers)
				figures = append(figures, prove.AtLeast(name, cell.AgainstRedisRate, bound, ""))
			}
		}
		require.Len(t, figures, 8)
		return figures
	})
}
