package throttle

import (
	"context"
	"time"
)

// ReconcileAt is Reconcile at an instant of this process's clock.
func ReconcileAt(ctx context.Context, r *Reservation, now time.Time, o Observation) (Heard, error) {
	return r.reconcile(ctx, now, o)
}

// Stall makes a reservation older, as if this process had stood still for so long.
func Stall(r *Reservation, d time.Duration) { r.sent, r.received = r.sent.Add(-d), r.received.Add(-d) }

// IsLate reports whether a start would be too late for its slot: so long after the slot,
// if the answer was there at once; and if Redis had decided when it was asked.
func IsLate(r *Reservation, after time.Duration) (bySlot, byWindow bool) {
	return r.isLate(r.received.Add(r.RetryAfter() + after)), r.isLate(r.sent.Add(r.RetryAfter() + after))
}

// UseBy is when the window of a reservation's start ends.
func UseBy(r *Reservation) time.Time { return r.useBy }
