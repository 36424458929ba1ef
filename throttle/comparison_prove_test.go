//go:build prove

package throttle

import "testing"

// Every algorithm is what its definition says, over ten million random operations.
func TestProveScriptsAgainstOracles(t *testing.T) {
	operations := 10_000_000
	if testing.Short() {
		operations = 200_000
	}
	compareWithOracles(t, operations)
}
