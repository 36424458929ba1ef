package throttle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Leases are renewed three times each, and more often while Redis does not answer. One is
// lost when Redis says so, or as soon as it may have run out, and not before.
func TestKeeperRenewsLeases(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	const round, try = lease / 3, lease / 12
	for name, test := range map[string]struct {
		isHeld      bool
		err         error
		least, most time.Duration // from the last renewal until it is lost
	}{
		"held as ever":   {isHeld: true},
		"others have it": {least: round * 4 / 5, most: round},
		"nobody tells":   {err: context.DeadlineExceeded, least: lease, most: lease + try},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				renewed, renewals := time.Now(), 0
				k := &keeper{lease: lease, most: 10}
				k.renew = func(context.Context, []*hold) ([]bool, error) {
					if renewals++; renewals > 10 {
						return []bool{test.isHeld}, test.err
					}
					assert.GreaterOrEqual(t, time.Since(renewed), round*4/5)
					assert.LessOrEqual(t, time.Since(renewed), round)
					renewed = time.Now()
					return []bool{true}, nil
				}
				h := &hold{keeper: k, lost: make(chan struct{}), ends: renewed.Add(lease)}
				k.add(h)
				defer k.drop(h)
				select {
				case <-h.lost:
					synctest.Wait()
					assert.GreaterOrEqual(t, time.Since(renewed), test.least)
					assert.LessOrEqual(t, time.Since(renewed), test.most)
				case <-time.After(time.Hour):
					assert.True(t, test.isHeld)
				}
			})
		})
	}
}

// A lease that was handed over lasts for a moment. It is renewed in time, whatever round was
// to come, and is one like others then; those that have just been renewed are left alone.
func TestKeeperRenewsHandedLeasesSoon(t *testing.T) {
	t.Parallel()
	const lease, handed = time.Minute, time.Second
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		k := &keeper{lease: lease, most: 10}
		rounds := map[*hold][]time.Duration{}
		k.renew = func(_ context.Context, holds []*hold) ([]bool, error) {
			has := make([]bool, len(holds))
			for i, h := range holds {
				rounds[h], has[i] = append(rounds[h], time.Since(began)), true
			}
			return has, nil
		}
		newHold := func(lasts time.Duration) *hold {
			h := &hold{keeper: k, lost: make(chan struct{}), ends: time.Now().Add(lasts)}
			k.add(h)
			return h
		}
		long := newHold(lease)
		time.Sleep(10 * time.Second)
		ended, short := newHold(handed), newHold(handed)
		time.Sleep(handed / 10)
		k.drop(ended)
		time.Sleep(50 * time.Second)
		k.drop(long)
		k.drop(short)
		synctest.Wait()
		assert.Empty(t, rounds[ended], "it ended before")
		require.NotEmpty(t, rounds[short])
		assert.Less(t, rounds[short][0], 10*time.Second+handed/2)
		assert.Len(t, rounds[long], 3)
		assert.InDelta(t, 3.5, float64(len(rounds[short])), 0.5, "one more")
	})
}
