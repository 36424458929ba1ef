package policy

import (
	"errors"
	"fmt"
	"strconv"
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

// String writes the headroom as a policies file has it: 10%, or a number of tokens.
func (h Headroom) String() string {
	if h.Percent > 0 {
		return fmt.Sprintf("%d%%", h.Percent)
	}
	return strconv.FormatInt(h.Tokens, 10)
}

// headroom reads the key: {high: 10%}, or a number of tokens.
func (f *configFile) headroom(it item) (h Headroom) {
	for _, it := range f.mapping(it, "a headroom") {
		if it.key != PriorityHigh {
			continue
		}
		kind, most, unit := &h.Tokens, int64(MaxBurst), " tokens"
		text, isPercent := strings.CutSuffix(f.text(it), "%")
		if isPercent {
			kind, most, unit = &h.Percent, 99, "%"
		}
		*kind = f.number(it, text)
		if err := checkKept(*kind, most, unit); err != nil && !f.unread[it.path] {
			f.unreadable(it, "%v", err)
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
