//go:build prove

package overhead

import (
	"testing"

	"github.com/rampmeter/rampmeter/internal/prove"
)

// What a limit costs that never binds. Where tenants have counts of their own, each task's
// is written by itself, whoever it shares its call with.
func TestProveOverhead(t *testing.T) {
	prove.Figures(t, func(t *testing.T) (figures []prove.Figure) {
		rounds := "9"
		if testing.Short() {
			rounds = "3"
		}
		got := measured(t, "-rounds", rounds)
		for name, commands := range map[string]float64{"token_bucket": 15.5, "lane": 16} {
			figures = append(figures,
				prove.AtLeast(name+": tasks done while one without a policy is", got[name].Share, 0.92, ""),
				prove.AtMost(name+": Redis commands per task", got[name].Commands, commands, ""),
			)
		}
		return figures
	})
}
