package throttle

// RenewNow renews the leases that a Limiter holds for a policy, without waiting for
// the next round.
func RenewNow(l *Limiter, policy string) error { return CallsOf(l, policy).leases.keeper.makeRound() }

// Waiting tells how many requests of this Limiter stand in line for a slot.
func Waiting(l *Limiter, policy string) int {
	line := CallsOf(l, policy).leases.line
	line.mu.Lock()
	defer line.mu.Unlock()
	n := 0
	for _, row := range line.places {
		n += len(row)
	}
	return n
}

// Held tells how many reservations of this Limiter are held.
func Held(l *Limiter, policy string) int {
	keeper := &CallsOf(l, policy).leases.keeper
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	return len(keeper.holds)
}
