//go:build prove

package throttle_test

import "testing"

func TestProveReconcileAgainstModel(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	eachStory(t, seeds, 2, reconcileAgainstModel)
}
