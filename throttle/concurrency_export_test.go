package throttle

import (
	"context"
	"maps"
	"slices"
	"time"
)

// RenewNow renews the leases that a Limiter holds for a policy, without waiting for
// the next round.
func RenewNow(l *Limiter, policy string) error { return CallsOf(l, policy).leases.keeper.renewAll() }

// renewAll makes a round of all holds.
func (k *keeper) renewAll() error {
	k.mu.Lock()
	holds := slices.Collect(maps.Keys(k.holds))
	k.mu.Unlock()
	return k.makeRound(holds)
}

// RenewCall makes one call of a renewal for a reservation, as a server may run it late or
// twice. Leases that are gone may come back before an instant; never, if it is zero.
func RenewCall(ctx context.Context, r *Reservation, back time.Time) (bool, error) {
	leases, until := r.leases(), int64(0)
	if !back.IsZero() {
		until = back.UnixMicro()
	}
	has, _, err := leases.renewUntil(ctx, []*hold{leases.newHold(r)}, until)
	return err == nil && has[0], err
}

// ReleaseCall makes the call of a release for a reservation, whether it was made before
// or not.
func ReleaseCall(ctx context.Context, r *Reservation) error {
	return r.leases().release(ctx, r.claim, r.receipts)
}

// Held tells how many reservations of this Limiter are held.
func Held(l *Limiter, policy string) int {
	keeper := &CallsOf(l, policy).leases.keeper
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	return len(keeper.holds)
}
