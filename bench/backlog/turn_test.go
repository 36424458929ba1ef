package backlog

import (
	"strconv"
	"strings"
	"time"
)

// noon is when made-up turns begin: on a multiple of every period.
var noon = time.Unix(1_700_000_000, 0)

// at is an instant so many milliseconds after noon.
func at(ms float64) time.Time { return noon.Add(time.Duration(ms * float64(time.Millisecond))) }

// evenly are n instants from the first on.
func evenly(n int, first, apart float64) []time.Time {
	times := make([]time.Time, n)
	for i := range times {
		times[i] = at(first + float64(i)*apart)
	}
	return times
}

// callsAt are calls of tasks in order, which arrive when they start.
func callsAt(times []time.Time) []call {
	calls := make([]call, len(times))
	for i, x := range times {
		calls[i] = call{task: i, arrived: x, began: x}
	}
	return calls
}

// callsOf reads calls in order of arrival, as in "a1 b7 a2".
func callsOf(text string) []call {
	var calls []call
	for i, word := range strings.Fields(text) {
		number, err := strconv.Atoi(word[1:])
		if err != nil {
			panic(err)
		}
		calls = append(calls, call{task: number, tenant: word[:1], arrived: at(float64(i)), began: at(float64(i))})
	}
	return calls
}

// scenarioOf is the one with that name.
func scenarioOf(name string) *scenario {
	for _, s := range scenarios() {
		if s.name == name {
			return s
		}
	}
	panic(name)
}

// contenderOf is the one with that name.
func contenderOf(name string) *contender {
	for _, c := range contenders() {
		if c.name == name {
			return c
		}
	}
	panic(name)
}
