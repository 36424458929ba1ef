package throttletest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// Limiter is the least that a limiter must have to be judged: it asks for one start of
// a cost, now, for a key. The limiter has to believe that now is the time, until it
// is asked again: a [Clock] makes an embedded server believe it. Requests come one by
// one, and now goes back only where [ClockSetBack] is judged. An error means that the
// limiter could not decide, and breaks the promise that is being judged.
type Limiter func(ctx context.Context, now time.Time, key string, cost int64) (Answer, error)

// Answer is what a limiter says to a request.
type Answer struct {
	// Started tells that the request has passed, and starts now.
	Started bool
	// Never tells of a denied request that it can not pass whatever the wait.
	Never bool
	// RetryAt is the first instant at which a denied request could start, if nobody
	// else starts. Zero means that the limiter does not tell.
	RetryAt time.Time
	// Release gives the slots of a start back. Nil where a start holds nothing.
	Release func(ctx context.Context, now time.Time) error
}

// Promise is what is expected of any limiter, in a few words.
type Promise string

// The promises, in the order in which they are judged.
const (
	// ImpossibleIsNever: a cost above the model's Capacity is refused as never, and takes
	// nothing.
	ImpossibleIsNever Promise = "the impossible is refused as never"
	// NeverOver: what starts keeps to the definition. It is judged by the recorded
	// starts.
	NeverOver Promise = "never over"
	// AllUsable: what the definition owes starts, where no request has been denied yet.
	AllUsable Promise = "all tokens are usable"
	// DenialsTakeNothing: what the definition owes starts, however many requests have
	// been denied before.
	DenialsTakeNothing Promise = "denials take nothing"
	// PatienceIsRewarded: a denied request passes at exactly its RetryAt, and not one
	// step of the limiter's time before.
	PatienceIsRewarded Promise = "patience is rewarded"
	// CostsCount: a start of cost n leaves Capacity - n for others.
	CostsCount Promise = "costs count"
	// KeysKeepApart: what one key takes, no other misses.
	KeysKeepApart Promise = "keys keep apart"
	// KeptWhileItMatters: no count expires, however long nobody asks, while it matters.
	KeptWhileItMatters Promise = "kept while it matters"
	// ClockSetBack: when the clock steps back, nothing is handed out twice, and nobody is
	// locked out once it has caught up.
	ClockSetBack Promise = "a clock set back does no harm"
)

// Promises returns all of them, in the order in which they are judged.
func Promises() []Promise {
	return []Promise{
		ImpossibleIsNever, NeverOver, AllUsable, DenialsTakeNothing, PatienceIsRewarded,
		CostsCount, KeysKeepApart, KeptWhileItMatters, ClockSetBack,
	}
}

// Verdict is what came of judging a promise.
type Verdict int

const (
	// NotJudged means that the limiter can not be judged by it, or that nothing came to
	// pass by which to judge.
	NotJudged Verdict = iota
	// Held means that no request has broken it.
	Held
	// Broken means that a request has.
	Broken
)

// String returns "not judged", "held" or "broken".
func (v Verdict) String() string {
	return map[Verdict]string{NotJudged: "not judged", Held: "held", Broken: "broken"}[v]
}

// Finding is what came of one promise.
type Finding struct {
	Promise Promise
	Verdict Verdict
	// Detail is, of a broken promise, the first example: the requests of one key until
	// it was broken. Of one not judged it is the reason.
	Detail string
}

// Report has a finding for each of Promises, in their order.
type Report []Finding

// Of returns the finding for a promise.
func (r Report) Of(p Promise) Finding {
	i := slices.IndexFunc(r, func(f Finding) bool { return f.Promise == p })
	if i < 0 {
		return Finding{Promise: p}
	}
	return r[i]
}

// String has a line for each promise.
func (r Report) String() string {
	var b strings.Builder
	for _, f := range r {
		fmt.Fprintf(&b, "%s: %s\n", f.Promise, f.Verdict)
		if f.Detail != "" {
			b.WriteString("  " + strings.ReplaceAll(f.Detail, "\n", "\n  ") + "\n")
		}
	}
	return b.String()
}

// ConformOptions say how to judge. The zero value is good for a limiter that can do all
// that is asked of it.
type ConformOptions struct {
	// Begin is the limiter's time at first. Zero means noon of 4 May 2031, UTC.
	Begin time.Time
	// Step is the finest time that the limiter tells apart. All instants that it is
	// asked at are whole steps from 1970. Zero means a microsecond.
	Step time.Duration
	// Stories is how many random stories are told to the limiter, of some 40 requests
	// each. Zero means 20.
	Stories int
	// Seed makes other stories. The same seed makes the same ones.
	Seed uint64
	// Cannot has the promises that the limiter can not be judged by, with the reason.
	// Without CostsCount all requests cost one, and ImpossibleIsNever is not judged
	// either.
	Cannot map[Promise]string
}

// Judge holds a limiter against a model, and reports which promises it keeps. The keys it
// asks for must be fresh: "k1", "k2" and so on, and "k2:x" and the like. It asks for every
// token of the model: choose one of few. It panics if the model has no Capacity or no
// Memory.
func Judge(ctx context.Context, limiter Limiter, model Model, options ConformOptions) Report {
	j := newJudge(ctx, limiter, model, options)
	j.judge()
	report := make(Report, 0, len(Promises()))
	for _, p := range Promises() {
		report = append(report, j.finding(p))
	}
	return report
}

// Conform is [Judge] as a test: each broken promise is an error of it. Promises that were
// not judged are no errors; the report tells.
func Conform(tb testing.TB, limiter Limiter, model Model, options ConformOptions) Report {
	tb.Helper()
	report := Judge(tb.Context(), limiter, model, options)
	for _, f := range report {
		if f.Verdict == Broken {
			tb.Errorf("broken, with seed %d: %s\n%s", options.Seed, f.Promise, f.Detail)
		}
	}
	return report
}
