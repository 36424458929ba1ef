// Package decisions measures what one decision of a rate limiter costs: Rampmeter's
// algorithms and well-known peers, side by side in one run on one Redis.
//
//	cd bench && go run .            some minutes, medians of nine rounds
//	cd bench && go run . -quick     under 40 seconds, to see the order of things
//
// Absolute numbers say more about the machine than about the limiter, and on a
// shared machine they change from one minute to the next. So all contenders take
// turns in short slices, and what counts are ratios: each slice against the one
// that bare EVALSHA, or redis_rate, had in the same round, and of those the
// median.
//
// What is measured is the path of a granted request: limits are higher than any
// contender's speed, equal for all. Rampmeter is asked as its worker asks, for tasks that
// may be parked.
package decisions
