// Package policy reads and checks policies files: which limits there are for which
// upstream, and which tasks keep to them. It decides nothing and knows no Redis; a
// throttle.Limiter is made of its [Config].
//
// A [Config] has the policies and the routes by which tasks come to them. [ReadFile]
// reads it from a file, [Parse] from a file's content; one that is built in Go is checked
// by [Config.Validate]. What is wrong is told by a [*ConfigError], with every problem at
// once and its line.
//
//	config, err := policy.ReadFile("policies.yaml")
//	if err != nil { ... } // policies.yaml:6: policies.github.limits[0].rate: ...
//	limiter, err := throttle.New(client, config)
//
// The fields of a [Policy] and a [Limit] are as somebody wrote them: empty and zero stand
// for a default. Methods return what holds then, as [Policy.Wait] and [Limit.Capacity] do.
package policy
