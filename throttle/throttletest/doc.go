// Package throttletest has what it takes to test a throttled program for real:
// Redis servers that start in milliseconds, an upstream that enforces a quota by
// its own clock and remembers every call, and a judge of recorded start times
// that shares no code with the limiter it judges; and the suite of promises that any
// limiter must keep.
//
// # Servers
//
// [StartEmbedded] runs a Redis inside the process; [StartRedis] runs the real
// redis-server in a temporary folder. Both are for any program. In a test,
// [EachServer] runs the same test on both:
//
//	func TestCounts(t *testing.T) {
//		t.Parallel()
//		throttletest.EachServer(t, func(t *testing.T, srv *throttletest.Server) {
//			require.NoError(t, srv.Client().Incr(t.Context(), "n").Err())
//		})
//	}
//
// With a [Clock] the embedded server's time stands still until the test moves it,
// so that "not a microsecond before" can be tested to the microsecond.
//
// A [Proxy] stands before any of them, and loses answers or connections on demand.
//
// # Upstream
//
// [Upstream] is an http.Handler. It answers with GitHub's quota headers, refuses
// what is over the quota with a 429, and tells afterwards what it saw.
//
// # Judging starts
//
// [MaxInAnyInterval], [MaxBurst], [BurstSince], [MaxPerWindow], [MaxPerOpenedWindow]
// and [Used] are pure functions of recorded times. They take them in any order, all of one
// clock, and reckon exactly, in whole nanoseconds. A start that costs three is
// three equal times.
//
// # Judging limiters
//
// [Conform] holds a limiter against a [Model], the definition of its algorithm, and fails
// the test that it breaks a promise in; [Judge] only reports. Whoever can ask a limiter
// at an instant, by a function, can have it judged: ours are, and peers in bench/.
//
//	throttletest.Conform(t, limiter, throttletest.TokenBucketModel(5, time.Minute, 5),
//		throttletest.ConformOptions{})
package throttletest
