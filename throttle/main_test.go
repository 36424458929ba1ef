package throttle_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(stressor); order != "" {
		if err := takePart(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	throttletest.Main(m)
}
