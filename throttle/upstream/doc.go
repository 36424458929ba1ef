// Package upstream knows how APIs tell their quota, and makes a limiter heed it.
//
// [Read] reads what a response says: how much is left of which quota, and, if the
// call was refused, until when and what the refusal speaks of. There is a reader for
// each [policy.API]; what makes no sense to it is left out and named in
// [Answer.Malformed]. A vendor's numbers, such as the length of a window that no
// header tells, are in apis.go and can be overruled in the policies file.
package upstream
