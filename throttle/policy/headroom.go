package policy

import (
	"errors"
	"fmt"
	"strings"
)

// A task is urgent whose attribute PriorityAttribute is PriorityHigh. It goes ahead of
// those of its lane that came less than a day before it, and may use the headroom of
// limits. What it takes counts like any other task's, to its lane's share, too.
const (
	PriorityAttribute = "priority"
	PriorityHigh      = "high"
)

// Headroom is what of a limit is kept for urgent tasks: others pass only where that
// much is left over. It is not lent while there are none. The zero value keeps nothing;
// at most one field is set.
type Headroom struct {
	// Tokens is how many, of those that the limit holds at most.
	Tokens int64
	// Percent is how many of a hundred, rounded up to whole tokens.
	Percent int64
}

// Kept is how many tokens of the limit are for urgent tasks alone.
func (l *Limit) Kept() int64 {
	if l.Headroom.Percent > 0 {
		return (l.Capacity()*l.Headroom.Percent + 99) / 100
	}
	return l.Headroom.Tokens
}

// IsUrgent reports whether a task with these attributes is urgent.
func IsUrgent(attributes map[string]string) bool {
	return attributes[PriorityAttribute] == PriorityHigh
}

// headroom reads the key: {high: 10%}, or a number of tokens.
func (f *configFile) headroom(it item) Headroom {
	var h Headroom
	for _, it := range f.mapping(it, "a headroom") {
		if it.key != PriorityHigh {
			continue
		}
		text := f.option(it)
		if percent, ok := strings.CutSuffix(text, "%"); ok {
			h.Percent = f.whole(it, percent, func(n int64) error { return checkKept(n, 99, "%") })
		} else {
			h.Tokens = f.whole(it, text, func(n int64) error { return checkKept(n, MaxBurst, " tokens") })
		}
		if f.unread[it.path] {
			return Headroom{}
		}
	}
	return h
}

func checkKept(n, most int64, unit string) error {
	if n < 1 || n > most {
		return fmt.Errorf("the headroom is %d%s, not from 1 to %d%s; remove the key to keep nothing", n, unit, most, unit)
	}
	return nil
}

// checkHeadroom tells what is wrong with what the limit keeps, or returns nil.
func (l *Limit) checkHeadroom() error {
	h := l.Headroom
	if h == (Headroom{}) {
		return nil
	}
	if l.Algorithm == Spacing {
		return errors.New("a spacing holds no tokens that could be kept for urgent tasks; remove the headroom, or use a token_bucket")
	}
	if h.Tokens != 0 && h.Percent != 0 {
		return errors.New("the headroom is in tokens and in percent; choose one")
	}
	if err := checkKept(h.Tokens+h.Percent, MaxBurst, ""); err != nil {
		return err
	}
	if most := l.Capacity() - 1; most >= 0 && (h.Percent > 99 || l.Kept() > most) {
		return fmt.Errorf("a headroom of %d leaves nothing of %d for other tasks; write at most %d", l.Kept(), most+1, most)
	}
	return nil
}
