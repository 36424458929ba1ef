package throttle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// Law 2: a look changes nothing, whether its task is in line or not, and was woken or not;
// nor where those who were woken have not asked.
func TestLookChangesNothing(t *testing.T) {
	t.Parallel()
	eachStory(t, 1, 1, func(t *testing.T, make makeLimiter, _ uint64) {
		b := make(bucket("rate", 1, time.Second, 1))
		b.remake(policy.Policy{Limits: []policy.Limit{bucket("rate", 1, time.Second, 1)}})
		look := func(tasks ...string) {
			t.Helper()
			before := b.contents()
			for _, task := range tasks {
				asks := request(0)
				asks.TaskID = task
				_, err := b.limiter.LookAhead(t.Context(), asks)
				require.NoError(t, err)
				require.Equal(t, before, b.contents(), task)
			}
		}
		wake := func(want int) {
			t.Helper()
			call, err := b.limiter.Line("api").Wake(t.Context(), line.Waking{As: "us", Near: near})
			require.NoError(t, err)
			assert.Len(t, call.Tasks, want)
		}
		for _, task := range []string{"q/1", "q/2", "q/3"} {
			asks := request(0)
			asks.TaskID, asks.Park = task, true
			_, err := b.limiter.Reserve(t.Context(), asks)
			require.NoError(t, err)
		}
		look("q/2", "q/3", "q/4")
		b.at(time.Second)
		wake(1)
		look("q/2", "q/3", "q/4")
		b.at(3 * time.Second)
		wake(2) // the one that did not ask, and another
		look("q/2", "q/3", "q/4")
	})
}
