// Package conform holds rate limiters against their definitions: Rampmeter's and
// well-known peers, by the same suite.
//
//	cd bench && go run . conform
//
// All of them run on an embedded Redis whose clock the suite moves, so each is asked at
// the very microsecond at which its promises matter. What a limiter has no way to say is
// not judged. Each broken promise is told with an example.
package conform
