package throttle

// RenewNow renews the leases that a Limiter holds for a policy, without waiting for
// the next round.
func RenewNow(l *Limiter, policy string) error { return CallsOf(l, policy).leases.keeper.makeRound() }

// Held tells how many reservations of this Limiter are held.
func Held(l *Limiter, policy string) int {
	keeper := &CallsOf(l, policy).leases.keeper
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	return len(keeper.holds)
}
