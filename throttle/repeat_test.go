package throttle_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/line"
	"github.com/rampmeter/rampmeter/throttle"
	"github.com/rampmeter/rampmeter/throttle/policy"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// repeater keeps the last call of a script, to make it again as a client does that has
// lost the answer.
type repeater struct {
	*testLimiter
	call  []any
	reply any
}

func newRepeater(t *testing.T, server *throttletest.Server, policy policy.Policy) *repeater {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	r := &repeater{testLimiter: &testLimiter{t: t, clock: throttletest.NewClock(noon), client: client, byKey: true}}
	empty(t, client)
	client.AddHook(r)
	r.remake(policy)
	r.at(0)
	return r
}

func (r *repeater) DialHook(next redis.DialHook) redis.DialHook { return next }
func (r *repeater) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *repeater) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		err := next(ctx, command)
		if err != nil || !strings.HasPrefix(command.Name(), "eval") {
			return err
		}
		r.call = command.Args()
		switch script := command.(type) {
		case *redis.Cmd:
			r.reply = script.Val()
		case *redis.IntSliceCmd:
			var reply []any
			for _, number := range script.Val() {
				reply = append(reply, number)
			}
			r.reply = reply
		}
		return err
	}
}

// again makes the last call again, a second later. It returns both replies without the time
// of day, and which keys the second call has changed.
func (r *repeater) again() (first, second []any, changed []string) {
	r.t.Helper()
	call, reply, before := r.call, r.reply, r.contents()
	r.at(r.clock.Now().Sub(noon) + time.Second)
	again, err := r.client.Do(r.t.Context(), call...).Result()
	require.NoError(r.t, err)
	after := r.contents()
	for key := range after {
		if before[key] != after[key] {
			changed = append(changed, key)
		}
	}
	for key := range before {
		if _, isThere := after[key]; !isThere {
			changed = append(changed, key)
		}
	}
	slices.Sort(changed)
	return r.list(reply), r.list(again), changed
}

// list is a reply as a list, without the time of a call.
func (r *repeater) list(reply any) []any {
	numbers, isList := reply.([]any)
	if !isList {
		return []any{reply}
	}
	list := slices.Clone(numbers)
	if len(list) > 0 {
		if at, isTime := list[0].(int64); isTime && at >= noon.UnixMicro() {
			list = list[1:]
		}
	}
	return list
}

// Law 14, as the table of lua/README.md tells it of every script: what becomes of a call
// that arrives twice, the second time a second later.
func TestEveryCallTwice(t *testing.T) {
	t.Parallel()
	limits := []policy.Limit{
		bucket("rate", 3, 24*time.Hour, 3), slidingLog("log", 3, 24*time.Hour), {Name: "slots", Algorithm: policy.Concurrency, Slots: 3},
	}
	limits[0].Cost = "cost"
	park := func(r *repeater, task string) *throttle.Reservation {
		got, err := r.limiter.Reserve(r.t.Context(), throttle.Request{Policy: "api", TaskID: task, Park: true})
		require.NoError(r.t, err)
		return got
	}
	waking := line.Waking{As: "us", Near: near}
	fail := func(r *repeater, err error) { require.NoError(r.t, err) }
	const (
		changesNothing = "changes nothing, and the reply is the same"
		takesNoMore    = "takes or ends no more"
		takesAgain     = "takes again"
		keepsItsPlace  = "has the same place"
		repliesTheSame = "replies the same"
		wakesTheSame   = "wakes the same tasks, if they have not asked by then"
		tellsOfNone    = "tells of none of the tasks"
	)
	for name, test := range map[string]struct {
		do   func(r *repeater)
		want string
	}{
		"reserve":            {func(r *repeater) { r.reserve(0) }, takesAgain},
		"reserve an attempt": {func(r *repeater) { r.attempt("a", 0) }, takesNoMore},
		"ask":                {func(r *repeater) { spend(r.testLimiter); park(r, "a") }, keepsItsPlace},
		"join": {func(r *repeater) {
			spend(r.testLimiter)
			_, err := r.limiter.Join(r.t.Context(), throttle.Request{Policy: "api", TaskID: "a"}, time.Time{})
			fail(r, err)
		}, keepsItsPlace},
		"look": {func(r *repeater) {
			spend(r.testLimiter)
			_, err := r.limiter.LookAhead(r.t.Context(), throttle.Request{Policy: "api", TaskID: "a"})
			fail(r, err)
		}, takesNoMore},
		"peek": {func(r *repeater) {
			r.reserve(0)
			_, err := r.limiter.Peek(r.t.Context(), request(0))
			fail(r, err)
		}, takesNoMore},
		"settle, cancel": {func(r *repeater) { r.reserve(0); fail(r, r.reserve(0).Cancel(r.t.Context())) }, changesNothing},
		"settle, adjust": {func(r *repeater) {
			r.reserve(0)
			fail(r, r.reserve(0, "cost", "2").Adjust(r.t.Context(), map[string]string{"cost": "1"}))
		}, changesNothing},
		"release": {func(r *repeater) { r.reserve(0); fail(r, r.reserve(0).Release(r.t.Context())) }, takesNoMore},
		"wake": {func(r *repeater) {
			spend(r.testLimiter)
			park(r, "a")
			r.at(25 * time.Hour)
			call, err := r.limiter.Line("api").Wake(r.t.Context(), waking)
			fail(r, err)
			require.Len(r.t, call.Tasks, 1)
		}, wakesTheSame},
		"recent": {func(r *repeater) {
			r.reserve(0)
			_, err := r.limiter.Recent(r.t.Context(), request(0), "log", 5)
			fail(r, err)
		}, takesNoMore},
		"freeze": {func(r *repeater) { fail(r, r.limiter.Freeze(r.t.Context(), "api", time.Hour)) }, changesNothing},
		"refused": {func(r *repeater) {
			for range 3 {
				_, err := r.limiter.CountRefusal(r.t.Context(), "api", "a")
				fail(r, err)
			}
		}, changesNothing},
		"review": {func(r *repeater) {
			spend(r.testLimiter)
			park(r, "a")
			fail(r, r.limiter.Line("api").Review(r.t.Context()))
		}, repliesTheSame},
		"recall": {func(r *repeater) {
			spend(r.testLimiter)
			park(r, "a")
			limits := slices.Clone(limits)
			limits[0].Per = "user"
			r.update(limits...)
			call, err := r.limiter.Line("api").Recall(r.t.Context(), waking)
			fail(r, err)
			require.Len(r.t, call.Tasks, 1)
		}, tellsOfNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			throttletest.EachServer(t, func(t *testing.T, server *throttletest.Server) {
				r := newRepeater(t, server, policy.Policy{Limits: limits})
				test.do(r)
				first, second, changed := r.again()
				switch test.want {
				case changesNothing:
					assert.Equal(t, first, second)
					assert.Empty(t, changed)
				case takesNoMore:
					assert.Empty(t, changed)
				case takesAgain:
					assert.Contains(t, changed, "rm:{api}:rate")
				case keepsItsPlace:
					assert.Equal(t, first[5:7], second[5:7])
				case repliesTheSame:
					assert.Equal(t, first, second)
				case wakesTheSame:
					assert.Equal(t, first[2:], second[2:])
				case tellsOfNone: // asynq's own time brings them back
					assert.Len(t, second, len(first)-1)
				}
			})
		})
	}
}
