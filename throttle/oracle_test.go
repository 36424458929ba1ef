package throttle

// oracle is a limit as its definition says it, for one key, written without
// looking at the script. Times and durations are in microseconds.
type oracle interface {
	// reserve tells whether a request is granted and for when, or when it would
	// first pass.
	reserve(now, wait, cost int64, who string) (granted bool, at int64)
	// cancel gives back the nth granted reservation, counted from 0.
	cancel(now int64, nth int)
	// adjust corrects what the nth granted reservation took.
	adjust(now int64, nth int, more int64)
	// change sets other numbers, in force from the next operation on.
	change(now int64, l Limit)
	// status tells what is left, and when the limit is full again.
	status(now int64) (remaining, resetAfter int64)
	// flush forgets everything, as an emptied Redis does.
	flush()
}
