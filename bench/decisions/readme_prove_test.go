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

// README, «How it compares»: decisions made while redis_rate makes one. The bounds are
// four fifths of what a quiet machine shows.
func TestProveDecisions(t *testing.T) {
	least := map[string]map[int]float64{
		"token_bucket": {1: 0.8, 10: 1.75, 100: 6.5, 500: 11},
		"three limits": {1: 0.65, 10: 1.45, 100: 5.7, 500: 9.8},
	}
	prove.Figures(t, func(t *testing.T) (figures []prove.Figure) {
		args := []string{"-json", "-keys", "1", "-only", "^token_bucket$|^three limits$"}
		if testing.Short() {
			args = append(args, "-quick")
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
