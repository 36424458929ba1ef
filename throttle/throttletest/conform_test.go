package throttletest

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// faults are what a naive limiter can have wrong: each breaks the promise it stands at.
var faults = map[string]struct {
	breaks Promise
	tells  string
	fault  func(*naive)
}{
	"calls the impossible denied":  {ImpossibleIsNever, "not refused as never", func(n *naive) { n.callsImpossibleDenied = true }},
	"notes the impossible":         {ImpossibleIsNever, "0 of 5 are left", func(n *naive) { n.notesImpossible = true }},
	"starts what is over":          {NeverOver, "more started than may", func(n *naive) { n.startsOver = true }},
	"keeps a token back":           {AllUsable, "denied what is owed", func(n *naive) { n.keepsOne = true }},
	"notes denials":                {DenialsTakeNothing, "denied what is owed", func(n *naive) { n.notesDenials = true }},
	"tells a step too early":       {PatienceIsRewarded, "denied", func(n *naive) { n.late = -time.Microsecond }},
	"tells a step too late":        {PatienceIsRewarded, "it passes a step before", func(n *naive) { n.late = time.Microsecond }},
	"tells nothing":                {PatienceIsRewarded, "not told until when", func(n *naive) { n.silent = true }},
	"takes every cost for one":     {CostsCount, "more started than may", func(n *naive) { n.costOne = true }},
	"takes costs twice":            {CostsCount, "cost 2 of 5 has left 1", func(n *naive) { n.costTwice = true }},
	"can not tell capitals":        {KeysKeepApart, "has 0 of its 5", func(n *naive) { n.keyOf = strings.ToLower }},
	"forgets what nobody asks for": {KeptWhileItMatters, "more started than may", func(n *naive) { n.expires = true }},
	"forgets what is to come":      {ClockSetBack, "more started than may", func(n *naive) { n.forgets = true }},
	"is locked by its clock":       {ClockSetBack, "0 of 5 are left", func(n *naive) { n.locked = true }},
	"fails":                        {NeverOver, "could not decide", func(n *naive) { n.err = errors.New("no connection") }},
}

func TestConformTellsEveryFault(t *testing.T) {
	t.Parallel()
	const period = 3*time.Second + 7*time.Microsecond
	models := map[string]Model{
		"token bucket":    TokenBucketModel(3, period, 5),
		"interval bucket": IntervalBucketModel(3, period, 5),
		"fixed window":    FixedWindowModel(5, period),
		"opened window":   OpenedWindowModel(5, period),
		"sliding log":     SlidingLogModel(5, period),
		"sliding window":  SlidingWindowModel(5, period, period/7),
		"concurrency":     ConcurrencyModel(5, period),
	}
	for name, model := range models {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Judge(t.Context(), newNaive(model).ask, model, ConformOptions{})
			for _, f := range report {
				assert.Equal(t, Held, f.Verdict, report.String())
			}
			for name, tt := range faults {
				limiter := newNaive(model)
				tt.fault(limiter)
				report := Judge(t.Context(), limiter.ask, model, ConformOptions{Stories: 3})
				assert.Equal(t, Broken, report.Of(tt.breaks).Verdict, "%s\n%s", name, report)
				assert.Contains(t, report.Of(tt.breaks).Detail, tt.tells, name)
			}
		})
	}
}

// What a limiter can not do is not judged, and is not asked for either.
func TestConformAsksNothingThatCanNotBe(t *testing.T) {
	t.Parallel()
	model := SlidingLogModel(5, time.Second)
	limiter := newNaive(model)
	limiter.silent, limiter.forgets = true, true
	report := Judge(t.Context(), func(ctx context.Context, now time.Time, key string, cost int64) (Answer, error) {
		require.Equal(t, int64(1), cost)
		require.Zero(t, now.UnixMicro()%1000)
		return limiter.ask(ctx, now, key, cost)
	}, model, ConformOptions{Step: time.Millisecond, Stories: 3, Cannot: map[Promise]string{
		CostsCount: "asks for one", PatienceIsRewarded: "tells nothing", ClockSetBack: "",
	}})
	want := map[Promise]Finding{
		ImpossibleIsNever:  {ImpossibleIsNever, NotJudged, "asks for one"},
		CostsCount:         {CostsCount, NotJudged, "asks for one"},
		PatienceIsRewarded: {PatienceIsRewarded, NotJudged, "tells nothing"},
		ClockSetBack:       {ClockSetBack, NotJudged, "the limiter can not be judged by it"},
	}
	require.Len(t, report, len(Promises()))
	for i, p := range Promises() {
		if _, skipped := want[p]; !skipped {
			want[p] = Finding{Promise: p, Verdict: Held}
		}
		assert.Equal(t, want[p], report[i])
	}
	assert.Equal(t, NotJudged, Report{}.Of(NeverOver).Verdict)
}

// A limiter that never denies gives nobody a chance to be patient.
func TestConformFailsTheTest(t *testing.T) {
	t.Parallel()
	tb := &failingTB{TB: t}
	generous := func(context.Context, time.Time, string, int64) (Answer, error) { return Answer{Started: true}, nil }
	report := Conform(tb, generous, SlidingLogModel(2, time.Second), ConformOptions{Seed: 7, Stories: 2})
	assert.Equal(t, Broken, report.Of(NeverOver).Verdict)
	assert.Contains(t, strings.Join(tb.errors, "\n"), "broken, with seed 7: never over\nmore started than may")
	assert.Equal(t, NotJudged, report.Of(PatienceIsRewarded).Verdict)
}

// failingTB remembers what a test failed by.
type failingTB struct {
	testing.TB
	errors []string
}

func (f *failingTB) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

// naive is a limiter in memory that does what a model says, but for its faults.
type naive struct {
	model  Model
	starts map[string][]*Start
	latest map[string]time.Time // when a key was last asked for
	denied int

	err                                          error
	keyOf                                        func(string) string
	late                                         time.Duration
	callsImpossibleDenied, notesImpossible       bool
	startsOver, keepsOne, notesDenials, silent   bool
	costOne, costTwice, expires, forgets, locked bool
}

func newNaive(m Model) *naive {
	if m.Owes == nil {
		m.Owes = m.Holds
	}
	return &naive{
		model: m, starts: map[string][]*Start{}, latest: map[string]time.Time{},
		keyOf: func(key string) string { return key },
	}
}

func (n *naive) ask(_ context.Context, now time.Time, key string, cost int64) (Answer, error) {
	key = n.keyOf(key)
	if cost > n.model.Capacity {
		if n.notesImpossible {
			n.note(now, key, n.model.Capacity)
		}
		return Answer{Never: !n.callsImpossibleDenied, RetryAt: now.Add(n.model.Memory)}, n.err
	}
	switch {
	case n.costOne:
		cost = 1
	case n.costTwice && cost > 1:
		cost = min(2*cost, n.model.Capacity)
	}
	latest := n.latest[key]
	n.latest[key] = now
	if n.expires && now.Sub(latest) > n.model.Memory/2 {
		n.starts[key] = nil
	}
	isLocked := n.locked && now.Before(latest)
	if isLocked {
		n.latest[key] = latest.Add(time.Hour)
	}
	asked := cost
	if n.keepsOne {
		asked++
	}
	isLucky := n.startsOver && n.denied == 2
	if !isLocked && n.owes(now, now, key, asked) || isLucky {
		n.denied = 0
		start := n.note(now, key, cost)
		return Answer{Started: true, Release: func(_ context.Context, now time.Time) error {
			start.Ends = now
			return nil
		}}, n.err
	}
	n.denied++
	if n.notesDenials {
		n.note(now, key, cost)
	}
	if n.silent {
		return Answer{}, n.err
	}
	return Answer{RetryAt: n.first(now, key, cost).Add(n.late)}, n.err
}

func (n *naive) note(now time.Time, key string, cost int64) *Start {
	start := &Start{At: now, Cost: cost, Ends: now.Add(n.model.Lease)}
	n.starts[key] = append(n.starts[key], start)
	return start
}

// owes asks the model for a start at an instant, by what is known now.
func (n *naive) owes(now, at time.Time, key string, cost int64) bool {
	var starts []Start
	for _, s := range n.starts[key] {
		if !n.forgets || !s.At.After(now) {
			starts = append(starts, *s)
		}
	}
	return n.model.Owes(append(starts, Start{At: at, Cost: cost, Ends: at.Add(n.model.Lease)}))
}

// first is the first instant, in whole microseconds, at which the model owes a start.
func (n *naive) first(now time.Time, key string, cost int64) time.Time {
	steps := sort.Search(int(10*n.model.Memory/time.Microsecond), func(i int) bool {
		return n.owes(now, now.Add(time.Duration(i)*time.Microsecond), key, cost)
	})
	return now.Add(time.Duration(steps) * time.Microsecond)
}
