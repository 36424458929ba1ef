package asynqfacts_test

import (
	"testing"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func TestMain(m *testing.M) { throttletest.Main(m) }
