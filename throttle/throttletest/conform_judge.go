package throttletest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	defaultStories = 20
	storyRequests  = 40
	// mostKinds bounds how many costs, or amounts taken, a table goes through.
	mostKinds = 12
)

// judge is a judgment that goes on.
type judge struct {
	ctx     context.Context
	limiter Limiter
	model   Model
	options ConformOptions
	random  *rand.Rand
	now     time.Time
	keys    int
	checked map[Promise]bool
	broken  map[Promise]string // with the example
}

func newJudge(ctx context.Context, limiter Limiter, model Model, options ConformOptions) *judge {
	mustBePositive("the model's capacity", model.Capacity)
	mustBePositive("the model's memory", int64(model.Memory))
	if model.Owes == nil {
		model.Owes = model.Holds
	}
	options.Step = cmp.Or(options.Step, time.Microsecond)
	options.Stories = cmp.Or(options.Stories, defaultStories)
	if options.Begin.IsZero() {
		options.Begin = time.Date(2031, 5, 4, 12, 0, 0, 0, time.UTC)
	}
	return &judge{
		ctx: ctx, limiter: limiter, model: model, options: options,
		random: rand.New(rand.NewPCG(options.Seed, 0)), now: options.Begin,
		checked: map[Promise]bool{}, broken: map[Promise]string{},
	}
}

// breach is a broken promise. Whoever finds one panics with it, which ends what run lets
// happen.
type breach struct {
	promise Promise
	example string
}

// judge judges every promise. The impossible comes first, where it meets a limiter of
// which nothing was taken; the clock is set back last, so that it goes forward until then.
func (j *judge) judge() {
	j.run(ImpossibleIsNever, j.askTheImpossible)
	for range j.options.Stories {
		j.run(AllUsable, func() { j.tellStory(false) })
		j.run(DenialsTakeNothing, func() { j.tellStory(true) })
	}
	j.run(CostsCount, j.leaveTheRest)
	j.run(KeysKeepApart, j.mixKeys)
	j.run(KeptWhileItMatters, j.staySilent)
	j.run(ClockSetBack, j.setClockBack)
}

// run lets one thing happen to the limiter, if it can be judged by the promise. Of each
// promise the first example of a breach is kept.
func (j *judge) run(about Promise, happen func()) {
	if j.cannot(about) != "" {
		return
	}
	defer func() {
		switch b := recover().(type) {
		case nil:
		case breach:
			j.broken[b.promise] = cmp.Or(j.broken[b.promise], b.example)
		default:
			panic(b)
		}
	}()
	happen()
}

// cannot tells why the limiter can not be judged by a promise, or returns nothing.
func (j *judge) cannot(p Promise) string {
	why, declared := j.options.Cannot[p]
	if declared {
		return cmp.Or(why, "the limiter can not be judged by it")
	}
	if p == ImpossibleIsNever {
		return j.cannot(CostsCount)
	}
	return ""
}

func (j *judge) finding(p Promise) Finding {
	switch why := j.cannot(p); {
	case why != "":
		return Finding{p, NotJudged, why}
	case j.broken[p] != "":
		return Finding{p, Broken, j.broken[p]}
	case !j.checked[p]:
		return Finding{p, NotJudged, "no request put it to the test"}
	}
	return Finding{Promise: p, Verdict: Held}
}

// account is what was asked for one key, and what started.
type account struct {
	*judge
	key    string
	about  Promise // what is broken when more starts than may
	starts []Start
	held   []func(context.Context, time.Time) error // the releases, one for each start; nil if it has none
	denied int
	began  time.Time
	asked  []string
}

// open opens an account for a fresh key, some time later, at any phase of any window.
func (j *judge) open(about Promise) *account {
	j.sleep(j.model.Memory + j.upTo(j.model.Memory))
	j.keys++
	return &account{judge: j, key: "k" + strconv.Itoa(j.keys), about: about, began: j.now}
}

// sleep lets time pass, to a whole step.
func (j *judge) sleep(d time.Duration) {
	n := windowOf(j.now.Add(d), time.Unix(0, 0), j.options.Step)
	j.now = time.Unix(0, n*int64(j.options.Step))
}

func (j *judge) upTo(d time.Duration) time.Duration {
	return time.Duration(j.random.Int64N(int64(d) + 1))
}

// check notes that a promise is checked; ok tells how that went.
func (a *account) check(p Promise, ok bool, format string, args ...any) {
	a.checked[p] = true
	if !ok {
		const last = 12
		lines := a.asked[max(0, len(a.asked)-last):]
		panic(breach{p, fmt.Sprintf(format, args...) + "\n" + strings.Join(lines, "\n")})
	}
}

// ask asks for one start now, and judges by the definition what started.
func (a *account) ask(cost int64) Answer {
	answer, err := a.limiter(a.ctx, a.now, a.key, cost)
	outcome := "denied"
	switch {
	case err != nil:
		outcome = err.Error()
	case answer.Started:
		outcome = "started"
	case answer.Never:
		outcome = "never"
	case !answer.RetryAt.IsZero():
		outcome += ", retry after " + answer.RetryAt.Sub(a.now).String()
	}
	a.asked = append(a.asked, fmt.Sprintf("%14s %s cost %d: %s", a.now.Sub(a.began), a.key, cost, outcome))
	if err != nil {
		a.check(a.about, false, "the limiter could not decide")
	}
	if !answer.Started {
		a.denied++
		return answer
	}
	a.starts = append(a.starts, a.start(cost))
	a.held = append(a.held, answer.Release)
	a.check(a.about, a.model.Holds(a.starts), "more started than may")
	return answer
}

func (a *account) start(cost int64) Start {
	s := Start{At: a.now, Cost: cost}
	if a.model.Lease > 0 {
		s.Ends = a.now.Add(a.model.Lease)
	}
	return s
}

// passes reports whether a start of that cost passes now by a rule, which is the model's
// Holds or Owes.
func (a *account) passes(rule func([]Start) bool, cost int64) bool {
	return rule(append(slices.Clip(a.starts), a.start(cost)))
}

// waitFor lets time pass until a start of that cost passes.
func (a *account) waitFor(rule func([]Start) bool, cost int64) {
	if a.passes(rule, cost) {
		return
	}
	from := a.now
	early, late := int64(0), int64(1) // in steps; it passes after late, not after early
	passesAfter := func(steps int64) bool {
		a.now = from
		a.sleep(time.Duration(steps) * a.options.Step)
		return a.passes(rule, cost)
	}
	for !passesAfter(late) {
		if a.now.Sub(from) > 1000*a.model.Memory {
			panic(fmt.Sprintf("throttletest: by the model no start of cost %d ever passes", cost))
		}
		early, late = late, 2*late
	}
	for early+1 < late {
		if middle := early + (late-early)/2; passesAfter(middle) {
			late = middle
		} else {
			early = middle
		}
	}
	a.now = from
	a.sleep(time.Duration(late) * a.options.Step)
}

// takeAll asks for ones until one is denied, and returns how many started.
func (a *account) takeAll() (started int64) {
	for started <= a.model.Capacity && a.ask(1).Started {
		started++
	}
	return started
}
