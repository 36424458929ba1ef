package prove

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestFigureTellsWhetherItHolds(t *testing.T) {
	t.Parallel()
	for text, figure := range map[string]Figure{
		"  holds   quota used: 99 %, at least 98 %":             AtLeast("quota used", 99, 98, "%"),
		"  MISSED  quota used: 97.99 %, at least 98 %":          AtLeast("quota used", 97.99, 98, "%"),
		"  holds   attempts per task: 2, at most 2":             AtMost("attempts per task", 2, 2, ""),
		"  holds   all done: 19650 ms, at most 20210 ms":        Took("all done", 19650*time.Millisecond, 20210*time.Millisecond),
		"  MISSED  lateness: 20.5 ms, at most 20 ms":            Took("lateness", 20500*time.Microsecond, 20*time.Millisecond),
		"  MISSED  never measured: NaN times, at least 1 times": AtLeast("never measured", math.NaN(), 1, "times"),
	} {
		assert.Equal(t, text, figure.String())
	}
}

func TestLongPausesAndBusyOthersExplainAMiss(t *testing.T) {
	t.Parallel()
	assert.False(t, pauses{longPause - 1, 0}.explain())
	assert.True(t, pauses{longPause, 0}.explain())
	assert.False(t, pauses{0, muchUsed - 0.01}.explain())
	assert.True(t, pauses{0, muchUsed}.explain())
}
