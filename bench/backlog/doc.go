// Package backlog measures what becomes of tasks that are more than their limit
// lets start: how often each is tried, what that costs Redis, how much of the quota
// is used, in which order, how late, and how long a small tenant waits behind a big
// one.
//
//	cd bench && go run . backlog                       every scenario, in twenty minutes
//	cd bench && go run . backlog -quick                a twentieth of the tasks
//	cd bench && go run . backlog -scenarios tenants -tasks 200000 -for 1m
//
// Contenders take turns on one Redis, emptied between: plain asynq without a limit,
// asynq with the usual retry-after error, BullMQ's queue limiter, and Rampmeter,
// waiting and parked. Each turn has two worker processes that call an HTTP API in
// this one, which records the calls.
//
// How each figure is come by stands where it is reckoned: see the fields of result.
package backlog
