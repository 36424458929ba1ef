// Package overhead measures what a limit costs that never binds: one worker process
// works tasks off that have no policy, and tasks whose policies always let them start at
// once.
//
//	cd bench && go run . overhead           in a minute
//	cd bench && go run . overhead -only lane -cpuprofile cpu.out
//
// The kinds of tasks take turns on one Redis. Each task makes one call of an HTTP API in
// the bench's process, which answers at once; with -idle it does nothing, and what its
// policy costs is compared with what asynq needs for a task, and with nothing else.
package overhead
