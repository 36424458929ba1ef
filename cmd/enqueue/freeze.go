package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

const (
	freezeAbout = `
enqueue freeze closes a policy, for every worker at once: no task of it starts until
the time is over, and none is lost or charged. With -limit it closes one key of one
limit only; that needs an upstream in the policy. Running tasks are left alone. A
freeze in force is never shortened; enqueue unfreeze ends it.`

	freezeExamples = `
  The upstream has announced ten minutes of maintenance:
    enqueue freeze -config policies.yaml github 10m

  Installation 42 alone, for a minute:
    enqueue freeze -config policies.yaml -limit hourly -attr installation=42 github 1m
`

	unfreezeAbout = `
enqueue unfreeze opens a policy that enqueue freeze or a refusal of its upstream has
closed; with -limit, one key of one limit. The limits stay in force. Tasks that were
put off until the end of the freeze come back at their times.`

	unfreezeExamples = `
  enqueue unfreeze -config policies.yaml github

  Installation 42 alone:
    enqueue unfreeze -config policies.yaml -limit hourly -attr installation=42 github
`
)

// freeze is enqueue freeze, and enqueue unfreeze if thaw is set.
type freeze struct {
	server

	thaw   bool
	attrs  pairs
	limit  string
	policy string
	time   time.Duration
}

func (f *freeze) flags(fs *flag.FlagSet) {
	f.server.flags(fs, "which has the policy; required")
	f.attrs = pairs{separator: "="}
	fs.StringVar(&f.limit, "limit", "", "`NAME` of the limit one key of which is meant, instead of the whole policy")
	fs.Var(&f.attrs, "attr", "task attribute that names the key of -limit, `NAME=VALUE`; may be repeated\n(in the environment: one a line)")
}

func (f *freeze) check(positional []string) error {
	problems := []error{f.server.check()}
	want := 2
	if f.thaw {
		want = 1
	}
	switch {
	case len(positional) > want:
		problems = append(problems, fmt.Errorf("unexpected argument %q", positional[want]))
	case len(positional) == 0:
		problems = append(problems, errors.New("no policy: name the one to close or open"))
	case len(positional) < want:
		problems = append(problems, errors.New("no time: say for how long, as in 10m"))
	default:
		f.policy = positional[0]
		if !f.thaw {
			problems = append(problems, f.readTime(positional[1]))
		}
	}
	if f.policies == "" {
		problems = append(problems, errors.New("no policies file: name it with -config FILE"))
	}
	return errors.Join(problems...)
}

func (f *freeze) readTime(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > policy.MaxMaxFreeze {
		return fmt.Errorf("%q is no time from above 0s to %s, as in 90s or 10m", text, policy.MaxMaxFreeze)
	}
	f.time = d
	return nil
}

func (f *freeze) run(ctx context.Context, st streams) error {
	session, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer session.close()
	if err := f.apply(ctx, session.limiter); err != nil {
		return err
	}
	what := "policy " + f.policy
	if f.limit != "" {
		what = fmt.Sprintf("limit %s of policy %s, %s", f.limit, f.policy, &f.attrs)
	}
	if f.thaw {
		say(st.out, "open: %s", what)
	} else {
		say(st.out, "frozen for %s: %s", inAbout(f.time), what)
	}
	return nil
}

func (f *freeze) apply(ctx context.Context, limiter *throttle.Limiter) error {
	request := throttle.Request{Policy: f.policy, Attributes: f.attrs.values}
	switch {
	case f.limit != "" && f.thaw:
		return limiter.UnfreezeKey(ctx, request, f.limit)
	case f.limit != "":
		return limiter.FreezeKey(ctx, request, f.limit, f.time)
	case f.thaw:
		return limiter.Unfreeze(ctx, f.policy)
	}
	return limiter.Freeze(ctx, f.policy, f.time)
}
