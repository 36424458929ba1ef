package throttle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
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
