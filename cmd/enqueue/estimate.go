package main

import (
	"fmt"
	"io"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// sayEstimate tells how long the quota makes it take, as far as that is known.
func sayEstimate(w io.Writer, e *producer.Estimate, config *policy.Config) {
	switch {
	case e == nil:
	case e.Policy == "":
		say(w, "no policy governs them: they run as fast as workers take them")
	case e.Duration <= 0:
		say(w, "they fit into the quota: from full limits nothing has to wait")
	default:
		whose := ""
		if e.Key != "" {
			whose = fmt.Sprintf(" for %s=%s", per(config, e), e.Key)
		}
		say(w, "the quota makes them take about %s: limit %s of policy %s%s is the narrowest",
			inAbout(e.Duration), e.Limit, e.Policy, whose)
	}
}

// per is the attribute whose value the estimate's key is.
func per(config *policy.Config, e *producer.Estimate) string {
	for _, limit := range config.Policy(e.Policy).Limits {
		if limit.Name == e.Limit {
			return limit.Per
		}
	}
	return ""
}
