package throttle

import "time"

// Reading is what one response says about one quota of its upstream. Package
// upstream reads them.
type Reading struct {
	// Quota is the upstream's name for it, as in "core", "tokens" or "daily". Empty
	// if it has none.
	Quota string
	// Limit is what the quota holds when nothing of it is used. Zero if the response
	// does not say.
	Limit int64
	// Remaining is what was left when the upstream had counted this call.
	Remaining int64
	// Reset is the time from the response's Date until the window ends, or until a
	// quota that Refills is full. Zero if the response does not say.
	Reset time.Duration
	// Window is how long the quota's window is, or how long it takes to refill when
	// nothing of it is left. Zero if neither the response nor the API's
	// documentation says; then it is the period of the limit that it corrects.
	Window time.Duration
	// Refills tells a quota that comes back bit by bit from one that comes back at
	// the end of its window.
	Refills bool
	// Part tells a quota that is for some of the upstream's calls only, such as one
	// endpoint. It corrects no limit but one that is said to be for it.
	Part bool
}
