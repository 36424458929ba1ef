package throttle

import "context"

// reservationKey is the context's key of the reservation a task runs under.
type reservationKey struct{}

// NewContext returns a context that carries the reservation a task runs under, for
// [FromContext]. The worker's middleware hands such a one to the handler.
func NewContext(ctx context.Context, r *Reservation) context.Context {
	return context.WithValue(ctx, reservationKey{}, r)
}

// FromContext returns the reservation that the running task was admitted by: to
// adjust it to what the task really cost, or to see its slot and the state of its
// limits. It is false in a task that no policy governs. Releasing and cancelling it
// is not the handler's to do.
func FromContext(ctx context.Context) (*Reservation, bool) {
	r, ok := ctx.Value(reservationKey{}).(*Reservation)
	return r, ok
}
