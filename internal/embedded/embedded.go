// Package embedded is a Redis inside the process, for commands and tests alike: it does
// not import the package testing.
package embedded

import (
	"cmp"
	"fmt"

	"github.com/alicebob/miniredis/v2"
)

// Start starts a Redis that listens at addr, a host:port; empty means a free port of
// 127.0.0.1. Its data lives in memory and ends with Close, which the caller owes it.
// Before it listens, prepare is called with it, unless that is nil.
func Start(addr string, prepare func(*miniredis.Miniredis)) (*miniredis.Miniredis, error) {
	mini := miniredis.NewMiniRedis()
	if prepare != nil {
		prepare(mini)
	}
	// By itself miniredis keeps every key until it is told that time went by. This
	// has it look at the clock at every command, as Redis does.
	mini.ClockTTL(true)
	if err := mini.StartAddr(cmp.Or(addr, "127.0.0.1:0")); err != nil {
		return nil, fmt.Errorf("start embedded redis: %w", err)
	}
	return mini, nil
}
