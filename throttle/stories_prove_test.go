//go:build prove

package throttle_test

import "testing"

// Random stories of make test, and many more of them.
func TestProveStories(t *testing.T) {
	moreStories = 50
	if testing.Short() {
		moreStories = 3
	}
	for name, test := range map[string]func(*testing.T){
		"patience":         TestPatienceIsRewarded,
		"cancels":          TestNeverOverWhateverIsCancelled,
		"given back":       TestPutOffSlotsGivenBack,
		"combinations":     TestCombinationsKeepEveryLimit,
		"headroom":         TestHeadroomIsNeverOver,
		"slots put off":    TestPutOffSlotsLeaveOthersTheirs,
		"together":         TestTogetherAsOneByOne,
		"sliding window":   TestSlidingWindowIsNeverOver,
		"told by upstream": TestReconcileAgainstModel,
		"two versions":     TestTwoVersionsOfNumbers,
	} {
		t.Run(name, test)
	}
}
