package lua

import (
	"strconv"
	"strings"
)

// Limit is one limit of a policy, as parts/policy.lua says.
type Limit struct {
	// Algorithm is the name of a file in algorithms.
	Algorithm string
	Count     int64
	PeriodUS  int64
	Capacity  int64
	// Option and Extra are what the algorithm says; an Option of "-" is none.
	Option string
	Extra  int64
	// Value is which value of a row counts at this limit, from 1; 0 for none. See
	// parts/line.lua.
	Value int
	// Kept is how many tokens are for urgent requests alone.
	Kept int64
}

// Head returns the arguments that every operation on a policy with these limits begins
// with.
func Head(limits ...Limit) []any {
	head := []any{strconv.Itoa(len(limits))}
	for i := range limits {
		l := &limits[i]
		head = append(head, l.Algorithm, l.numbers(), integer(l.Count), integer(l.PeriodUS), integer(l.Capacity),
			l.Option, integer(l.Extra), integer(l.Kept), strconv.Itoa(l.Value))
	}
	return head
}

// numbers are how a state tells by which numbers it was counted.
func (l *Limit) numbers() string {
	var b strings.Builder
	b.WriteString(integer(l.Count) + "/")
	if l.PeriodUS%1e6 == 0 {
		b.WriteString(integer(l.PeriodUS/1e6) + "s")
	} else {
		b.WriteString(integer(l.PeriodUS) + "u")
	}
	if l.Capacity != l.Count {
		b.WriteString("b" + integer(l.Capacity))
	}
	if l.Extra != 0 {
		b.WriteString("x" + integer(l.Extra))
	}
	if l.Option != "-" {
		b.WriteString(":" + l.Option)
	}
	return b.String() + "|"
}

func integer(n int64) string { return strconv.FormatInt(n, 10) }
