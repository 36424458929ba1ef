package backlog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

var (
	bucket = limit{Algorithm: policy.TokenBucket, Count: 100, Period: time.Second, Burst: 10}
	window = limit{Algorithm: policy.FixedWindow, Count: 100, Period: time.Second}
	log    = limit{Algorithm: policy.SlidingLog, Count: 5, Period: time.Second, PerTenant: true}
)

func turnAt(l limit, who string, times []time.Time) *turn {
	return &turn{
		scenario: &scenario{limit: l}, contender: contenderOf(who),
		seen: observation{tasks: len(times), calls: callsAt(times)},
	}
}

// together are n instants at once.
func together(n int, ms float64) []time.Time { return evenly(n, ms, 0) }

func TestQuotaUsed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit limit
		times []time.Time
		want  float64
	}{
		"all of a bucket":      {bucket, append(together(10, 0), evenly(100, 10, 10)...), 1},
		"half of a bucket":     {bucket, append(together(10, 0), evenly(95, 20, 20)...), 105.0 / 200},
		"all of the windows":   {window, append(append(together(100, 500), together(100, 1000)...), together(3, 2000)...), 1},
		"half of the windows":  {window, append(append(together(50, 500), together(50, 1000)...), together(3, 2000)...), 0.5},
		"a window left empty":  {window, append(together(100, 500), together(3, 2000)...), 0.5},
		"all of a log":         {log, append(together(5, 0), append(together(5, 1000), together(5, 2000)...)...), 1},
		"a little early":       {log, append(together(5, 10), together(5, 1000)...), 1},
		"a log that is waited": {log, append(together(5, 0), together(5, 3000)...), 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := quotaUsed(turnAt(tt.limit, "rampmeter, waiting", tt.times))
			assert.True(t, ok)
			assert.InDelta(t, tt.want, got, 1e-9)
		})
	}
	_, ok := quotaUsed(turnAt(bucket, "asynq, no limit", together(10, 0)))
	assert.False(t, ok, "there is none")
}

func TestQuotaUsedOnceParked(t *testing.T) {
	t.Parallel()
	// Nothing for a second, and then all there is.
	turn := turnAt(bucket, "rampmeter, parked", append(together(10, 0), evenly(101, 1000, 10)...))
	turn.seen.parked = &parking{at: at(500)}
	got, ok := quotaUsedParked(turn)
	assert.True(t, ok)
	assert.InDelta(t, 1, got, 1e-9)
	whole, _ := quotaUsed(turn)
	assert.InDelta(t, 111.0/210, whole, 1e-9)
}

// lasting are calls that take as long as each other.
func lasting(ms float64, times ...float64) []call {
	calls := make([]call, len(times))
	for i, x := range times {
		calls[i] = call{arrived: at(x), began: at(x), answered: at(x + ms)}
	}
	return calls
}

func TestSlotsBusy(t *testing.T) {
	t.Parallel()
	slots := limit{Algorithm: policy.Concurrency, Count: 2, Period: 100 * time.Millisecond}
	for name, tt := range map[string]struct {
		calls  []call
		busy   float64
		atOnce int
	}{
		"all the time":            {lasting(100, 0, 0, 100, 100, 200), 1, 2},
		"one of two":              {lasting(100, 0, 100, 200), 0.5, 1},
		"with gaps":               {lasting(100, 0, 0, 125, 125, 250), 0.8, 2},
		"only until the last one": {lasting(1000, 0, 100), 0.5, 2},
		"too many":                {lasting(100, 0, 50, 99, 100), 0.755, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turn := turnAt(slots, "rampmeter, parked", nil)
			turn.seen.calls = tt.calls
			got, ok := quotaUsed(turn)
			assert.True(t, ok)
			assert.InDelta(t, tt.busy, got, 1e-9)
			most, _ := busiest(turn)
			assert.EqualValues(t, tt.atOnce, most)
			excess, _ := over(turn)
			assert.EqualValues(t, max(0, tt.atOnce-2), excess)
		})
	}
}

// Each algorithm's own promise is judged, with no more than a start's lateness.
func TestOver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit limit
		who   string
		times []time.Time
		want  float64
	}{
		"a bucket kept":         {bucket, "rampmeter, waiting", append(together(10, 0), evenly(50, 10, 10)...), -2},
		"with lateness":         {bucket, "rampmeter, waiting", together(12, 0), 0},
		"a bucket spilt":        {bucket, "rampmeter, waiting", together(15, 0), 3},
		"windows kept":          {window, "rampmeter, waiting", append(together(100, 999), together(100, 1000)...), 0},
		"a window spilt":        {window, "rampmeter, waiting", append(together(100, 0), together(1, 999)...), 1},
		"its own windows":       {window, "retry-after", append(together(100, 900), together(100, 1900)...), 0},
		"not its own windows":   {window, "retry-after", append(together(100, 900), together(100, 1100)...), 100},
		"a log kept":            {log, "rampmeter, parked", append(together(5, 0), together(5, 980)...), 0},
		"a log spilt":           {log, "rampmeter, parked", append(together(5, 0), together(5, 979)...), 5},
		"BullMQ's windows":      {bucket, "BullMQ", append(together(100, 0), together(100, 1000)...), 0},
		"BullMQ over a windows": {bucket, "BullMQ", append(together(100, 0), together(1, 900)...), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turn := turnAt(tt.limit, tt.who, tt.times)
			got := turn.excess(starts(turn.seen.calls))
			assert.EqualValues(t, tt.want, got)
		})
	}
}

func TestTenantsAreJudgedAlone(t *testing.T) {
	t.Parallel()
	turn := turnAt(log, "rampmeter, parked", together(10, 0))
	got, ok := over(turn)
	assert.True(t, ok)
	assert.EqualValues(t, 5, got)
	for i := range turn.seen.calls {
		turn.seen.calls[i].tenant = []string{"a", "b"}[i%2]
	}
	got, _ = over(turn)
	assert.Zero(t, got)
	most, _ := busiest(turn)
	assert.EqualValues(t, 5, most)
}

func TestSlotLateness(t *testing.T) {
	t.Parallel()
	turn := turnAt(bucket, "rampmeter, waiting", evenly(100, 0, 10))
	_, ok := slotLateness(50)(turn)
	assert.False(t, ok, "nobody told a slot")
	for i := range turn.seen.calls {
		turn.seen.calls[i].slot = turn.seen.calls[i].began.Add(-time.Duration(i+1) * time.Millisecond)
	}
	for p, want := range map[float64]float64{50: 50, 99: 99, 100: 100} {
		got, ok := slotLateness(p)(turn)
		assert.True(t, ok)
		assert.InDelta(t, want, got, 1e-9)
	}
}
