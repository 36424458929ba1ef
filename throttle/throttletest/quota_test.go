package throttletest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// step is one call and how the quota should stand after it.
type step struct {
	at         time.Duration // since noon
	passed     bool
	remaining  int64
	reset      time.Duration // since noon
	retryAfter time.Duration
}

const ms = time.Millisecond

func TestQuota(t *testing.T) {
	t.Parallel()
	const us = time.Microsecond
	for name, tt := range map[string]struct {
		quota Quota
		steps []step
	}{
		"windows begin at start": {
			Quota{Limit: 2, Window: 10 * time.Second, Start: noon},
			[]step{
				{0, true, 1, 10 * time.Second, 0},
				{9 * time.Second, true, 0, 10 * time.Second, 0},
				{10*time.Second - us, false, 0, 10 * time.Second, us},
				{10 * time.Second, true, 1, 20 * time.Second, 0},
				{45 * time.Second, true, 1, 50 * time.Second, 0},
			},
		},
		"windows have a phase, and there are some before it": {
			Quota{Limit: 1, Window: 10 * time.Second, Start: noon.Add(time.Hour + 3*time.Second)},
			[]step{
				{0, true, 0, 3 * time.Second, 0},
				{2 * time.Second, false, 0, 3 * time.Second, time.Second},
				{3 * time.Second, true, 0, 13 * time.Second, 0},
			},
		},
		"a clock that steps back opens no old window": {
			Quota{Limit: 1, Window: 10 * time.Second, Start: noon},
			[]step{
				{10 * time.Second, true, 0, 20 * time.Second, 0},
				{9 * time.Second, false, 0, 20 * time.Second, 11 * time.Second},
			},
		},
		"a bucket is full at first and refills evenly": {
			Quota{Limit: 10, Window: time.Second, Burst: 2},
			[]step{
				{0, true, 1, 100 * ms, 0},
				{0, true, 0, 200 * ms, 0},
				{0, false, 0, 200 * ms, 100 * ms},
				{50 * ms, false, 0, 200 * ms, 50 * ms},
				{100*ms - us, false, 0, 200 * ms, us},
				{100 * ms, true, 0, 300 * ms, 0},
				{100*ms + time.Hour, true, 1, 200*ms + time.Hour, 0},
			},
		},
		"a bucket loses nothing to rounding": {
			Quota{Limit: 3, Window: time.Second, Burst: 2},
			[]step{
				{0, true, 1, 333_333_334, 0},
				{0, true, 0, 666_666_667, 0},
				{333_333_333, false, 0, 666_666_667, 1},
				{333_333_334, true, 0, time.Second, 0},
				{666_666_667, true, 0, 1_333_333_334, 0},
				{time.Second - 1, false, 0, 1_333_333_334, 1},
				{time.Second, true, 0, 1_666_666_667, 0},
			},
		},
		"a clock that steps back refills no bucket": {
			Quota{Limit: 1, Window: time.Second, Burst: 1},
			[]step{
				{time.Second, true, 0, 2 * time.Second, 0},
				{0, false, 0, 2 * time.Second, 2 * time.Second},
				{2*time.Second - us, false, 0, 2 * time.Second, us},
				{2 * time.Second, true, 0, 3 * time.Second, 0},
			},
		},
	} {
		require.NoError(t, tt.quota.validate())
		m := tt.quota.newMeter()
		limit := tt.quota.Limit
		if tt.quota.Burst > 0 {
			limit = tt.quota.Burst
		}
		for i, s := range tt.steps {
			got := m.take(noon.Add(s.at))
			want := verdict{s.passed, limit, s.remaining, noon.Add(s.reset), s.retryAfter, 0}
			if bucket, ok := m.(*bucketMeter); ok {
				want.refillIn = want.reset.Sub(bucket.at)
			}
			assert.Equal(t, want, got, "%s: call %d, at %s", name, i, s.at)
		}
	}
}

func TestQuotaProblems(t *testing.T) {
	t.Parallel()
	q := Quota{Limit: 0, Window: -time.Second, Burst: -1}
	err := q.validate()
	require.ErrorContains(t, err, "quota limit is 0")
	require.ErrorContains(t, err, "quota window is -1s")
	require.ErrorContains(t, err, "quota burst is -1")

	q = Quota{Limit: 1, Window: time.Hour, Burst: math.MaxInt64 / int64(time.Hour)}
	require.NoError(t, q.validate())
	q.Burst++
	require.ErrorContains(t, q.validate(), "too much")
}
