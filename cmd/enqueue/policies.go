package main

import (
	"flag"
	"fmt"
	"io"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/producer"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// policies is the policies file that the options may name.
type policies struct{ path string }

func (p *policies) flags(fs *flag.FlagSet, why string) {
	fs.StringVar(&p.path, "config", "", "policies `FILE` of the workers, "+why)
}

// read returns nil when no file is named.
func (p *policies) read() (*policy.Config, error) {
	if p.path == "" {
		return nil, nil
	}
	return policy.ReadFile(p.path)
}

// producer returns one that parks tasks at once by these policies; by none, where config
// is nil. The client stays the caller's to close.
func (p *policies) producer(rdb redis.UniversalClient, config *policy.Config) (*producer.Producer, error) {
	client := asynq.NewClientFromRedisClient(rdb)
	if config == nil {
		return producer.FromClient(client), nil
	}
	limiter, err := throttle.New(rdb, config)
	if err != nil {
		return nil, err
	}
	return producer.FromConfig(producer.Config{Limiter: limiter, Client: client})
}

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

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
