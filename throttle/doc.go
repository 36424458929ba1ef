// Package throttle decides when a task may call a rate-limited upstream. The
// limits live in Redis, are shared by every process, and are decided on there by
// one script call for any number of limits: all or nothing.
//
// A [policy.Config] names the policies; [New] makes a [Limiter] of it. [Limiter.Reserve]
// turns a [Request] into a [Reservation]: granted for an instant, denied with the
// time until it could pass, or never. A denial is a value; an error means that
// nothing could be decided, and then nothing may start.
//
//	reservation, err := limiter.Reserve(ctx, throttle.Request{
//		Policy:     "github",
//		Attributes: map[string]string{"installation": "42"},
//		MaxWait:    time.Second,
//	})
//	if err != nil { ... }
//	if err := reservation.Wait(ctx); err != nil { ... } // *ThrottledError: come back later
//	call()
//
// All times that are shared are Redis's, in whole microseconds; a process's own
// clock is only ever used to measure how long it slept.
package throttle
