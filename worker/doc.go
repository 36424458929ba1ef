// Package worker runs asynq tasks at the pace their policies allow.
//
// A program that has an asynq server already puts a [Middleware] around its
// handlers; one that has none starts a [Server]. Either way a task asks the
// policy of its type before it starts: it runs at once when tokens are there,
// waits in the worker when its slot is near, and is otherwise rescheduled for a
// time of its own. None of that spends a retry, counts as a failure, or reaches
// the program's ErrorHandler.
package worker
