// Package producer puts tasks into asynq queues for workers that Rampmeter
// paces: single tasks with attributes, batches from a file or a pipe, and
// tasks on a schedule.
//
// A producer that knows the policies puts tasks that would have to wait into line
// itself; see [Open] and [FromConfig].
//
// Attributes are what limits look at: whose count a task goes to, what it
// costs. They travel as asynq headers, so a task that plain asynq code enqueues
// with [asynq.NewTaskWithHeaders] is as good as one from here.
package producer
