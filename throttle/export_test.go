package throttle

import (
	"time"

	"github.com/rampmeter/rampmeter/lua"
)

// Patience is how long the tests of this package wait for what is to happen at all. It
// costs nothing when all is well.
const Patience = 2 * time.Minute

// RunByClockKey makes a Limiter's scripts read the time from a key that the test
// sets, in microseconds, instead of Redis's TIME: a real server's clock can not be
// told what time it is.
func RunByClockKey(l *Limiter, key string) {
	clock := `
local function now_us() return tonumber(redis.call('GET', '` + key + `')) end
local function int(n) return string.format('%d', n) end
local function ttl_ms(us) return us > 0 and 10000000 or 0 end
`
	for _, calls := range l.inForce.Load().policies {
		calls.scripts, calls.line.Scripts = lua.WithClock(clock), lua.WithClock(clock)
		calls.oneCount = false // waiting for company takes time of another clock
	}
}

// CallsOf returns what makes a Limiter's calls for one of its policies.
func CallsOf(l *Limiter, policy string) *policyCalls { return l.inForce.Load().policies[policy] }

// ScriptsOf returns the scripts of one of a Limiter's policies.
func ScriptsOf(l *Limiter, policy string) lua.Scripts { return CallsOf(l, policy).scripts }

// ReserveTogether makes requests of one policy in one script call.
func ReserveTogether(l *Limiter, requests ...Request) ([]*Reservation, error) {
	passengers := make([]*passenger, len(requests))
	for i, request := range requests {
		_, claim, err := l.claim(request)
		if err != nil {
			return nil, err
		}
		passengers[i] = newPassenger(claim, l)
	}
	CallsOf(l, requests[0].Policy).reserveAll(passengers)
	reservations := make([]*Reservation, len(requests))
	for i, p := range passengers {
		if p.err != nil {
			return nil, p.err
		}
		reservations[i] = p.reservation
	}
	return reservations, nil
}
