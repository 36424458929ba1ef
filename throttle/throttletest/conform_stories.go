package throttletest

import "time"

// askTheImpossible asks for more than there ever is, and then for all there is.
func (j *judge) askTheImpossible() {
	a := j.open(ImpossibleIsNever)
	for _, more := range []int64{1, 2, 1000} {
		answer := a.ask(j.model.Capacity + more)
		a.check(a.about, answer.Never && !answer.Started, "not refused as never")
	}
	started := a.takeAll()
	a.check(a.about, started == j.model.Capacity, "it took something: %d of %d are left", started, j.model.Capacity)
}

// tellStory lets requests of one key come at random. Unless it is about denials it makes
// only those that the definition owes.
func (j *judge) tellStory(denials bool) {
	a := j.open(NeverOver)
	for range storyRequests {
		cost := j.anyCost()
		a.passTime(cost)
		owed := a.passes(j.model.Owes, cost)
		if !denials && !owed {
			a.waitFor(j.model.Owes, cost)
			owed = true
		}
		promise := AllUsable
		if a.denied > 0 {
			promise = DenialsTakeNothing
		}
		answer := a.ask(cost)
		if owed {
			a.check(promise, answer.Started, "denied what is owed")
		}
		if denials && !answer.Started && j.random.IntN(2) == 0 {
			a.bePatient(cost, answer)
		}
	}
}

// anyCost is mostly one.
func (j *judge) anyCost() int64 {
	if j.cannot(CostsCount) != "" || j.random.IntN(2) == 0 {
		return 1
	}
	return 1 + j.random.Int64N(j.model.Capacity)
}

// passTime lets something of a story happen before the next request: nothing, a little
// or a long time, what is just enough for the request or just too short, or a release.
func (a *account) passTime(cost int64) {
	switch a.random.IntN(10) {
	case 0:
		a.sleep(a.options.Step)
	case 1:
		a.sleep(a.upTo(2 * a.model.Memory))
	case 2, 3:
		a.sleep(a.upTo(a.model.Memory / time.Duration(a.model.Capacity)))
	case 4:
		a.waitFor(a.model.Owes, cost)
	case 5:
		a.waitAlmost(a.model.Owes, cost)
	case 6, 7:
		a.releaseOne()
	}
}

// waitAlmost lets time pass until one step before a start of that cost passes.
func (a *account) waitAlmost(rule func([]Start) bool, cost int64) {
	before := a.now
	if a.waitFor(rule, cost); a.now.After(before) {
		a.sleep(-a.options.Step)
	}
}

// releaseOne ends a start before its lease does, where starts hold something.
func (a *account) releaseOne() {
	if len(a.starts) == 0 {
		return
	}
	i := a.random.IntN(len(a.starts))
	release := a.held[i]
	if release == nil || !a.starts[i].Ends.After(a.now) {
		return
	}
	a.held[i], a.starts[i].Ends = nil, a.now
	if err := release(a.ctx, a.now); err != nil {
		a.check(a.about, false, "release: %v", err)
	}
}

// bePatient does what a denied request was told: it comes back a step too early, and
// then in time.
func (a *account) bePatient(cost int64, denial Answer) {
	if a.cannot(PatienceIsRewarded) != "" {
		return
	}
	told := denial.RetryAt
	a.check(PatienceIsRewarded, told.After(a.now), "denied, and not told until when")
	if early := told.Add(-a.options.Step); early.After(a.now) {
		a.now = early
		a.check(PatienceIsRewarded, !a.ask(cost).Started, "it passes a step before it was told")
	}
	a.now = told
	a.check(PatienceIsRewarded, a.ask(cost).Started, "denied when it was told to come")
}

// leaveTheRest takes a cost from fresh keys, and then what is left.
func (j *judge) leaveTheRest() {
	for cost := int64(1); cost <= min(j.model.Capacity, mostKinds); cost++ {
		a := j.open(CostsCount)
		a.check(CostsCount, a.ask(cost).Started, "denied what is owed")
		left := a.takeAll()
		a.check(CostsCount, left == j.model.Capacity-cost, "cost %d of %d has left %d", cost, j.model.Capacity, left)
	}
}

// mixKeys takes all that each key has, of keys that look alike.
func (j *judge) mixKeys() {
	first := j.open(KeysKeepApart)
	for _, suffix := range []string{"", "x", "X", ":x", ":x:", "{x}", " x", "é", "*", "?"} {
		a := *first
		a.key, a.starts, a.held, a.denied = first.key+suffix, nil, nil, 0
		started := a.takeAll()
		a.check(KeysKeepApart, started == j.model.Capacity, "%q has %d of its %d", a.key, started, j.model.Capacity)
		first.asked = a.asked
	}
}

// staySilent takes some of a fresh key, comes back one step before all of it may start
// again, and takes what there is. Nobody asks meanwhile, so nothing keeps it alive.
func (j *judge) staySilent() {
	for taken := int64(1); taken <= min(j.model.Capacity, mostKinds); taken++ {
		a := j.open(KeptWhileItMatters)
		for range taken { // each tells anew how long to keep it, mostly no whole seconds
			a.ask(1)
			a.sleep(a.upTo(j.model.Memory / time.Duration(2*j.model.Capacity)))
		}
		a.waitAlmost(j.model.Holds, j.model.Capacity)
		a.takeAll()
	}
}

// setClockBack takes everything in the middle of a window, for limits that have windows,
// and asks again earlier in it.
func (j *judge) setClockBack() {
	for _, part := range []time.Duration{1000, 12, 3} {
		a := j.open(ClockSetBack)
		memory := j.model.Memory
		window := windowOf(j.now.Add(memory), time.Unix(0, 0), memory)
		j.now = time.Unix(0, window*int64(memory))
		j.sleep(memory / 2)
		middle := j.now
		a.takeAll()
		j.sleep(-memory / part)
		a.takeAll()
		j.now = middle
		j.sleep(2 * memory)
		started := a.takeAll()
		a.check(ClockSetBack, started == j.model.Capacity, "%d of %d are left when it has caught up", started, j.model.Capacity)
	}
}
