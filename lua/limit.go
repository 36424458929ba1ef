package lua

import "fmt"

// Limit is one limit of a policy, as fragments/policy.lua says.
type Limit struct {
	// Algorithm is the name of a fragment.
	Algorithm string
	Count     int64
	PeriodUS  int64
	Capacity  int64
	// Option and Extra are what the algorithm says.
	Option string
	Extra  int64
	// Value is which value of a row counts at this limit, from 1; 0 for none. See
	// fragments/line.lua.
	Value int
	// Kept is how many tokens are for urgent requests alone.
	Kept int64
}

// numbers returns the fields of the limit in Lua. What follows from its numbers alone is
// reckoned here, once, and not at every call.
func (l Limit) numbers() string {
	fields := fmt.Sprintf("count = %d, period_us = %d, capacity = %d, option = '%s', extra = %d, value = %d",
		l.Count, l.PeriodUS, l.Capacity, l.Option, l.Extra, l.Value)
	if l.Algorithm == "token_bucket" {
		b := l.bucket()
		fields += fmt.Sprintf(", token_us = %d, token_parts = %d, full_us = %d, full_text = '%s', mark = %d",
			b.tokenUS, b.tokenParts, b.fullUS, b.fullText(l.Capacity), b.mark(l.Capacity))
	}
	return fields
}

// shortcut returns the numbers that the shortcut of the limit's algorithm is called with,
// and whether it has one that holds for it; see fragments/shortcut.lua.
func (l Limit) shortcut() (numbers string, there bool) {
	switch {
	case l.Kept > 0:
	case l.Algorithm == "token_bucket":
		b := l.bucket()
		return fmt.Sprintf("%d, %d, %d, '%s', %d", l.Capacity, b.tokenUS, b.fullUS, b.fullText(l.Capacity), b.mark(l.Capacity)),
			b.tokenParts == 0
	case l.Algorithm == "fixed_window":
		return fmt.Sprintf("%d, %d, '/%d/%d:', '%s'", l.Count, l.PeriodUS, l.PeriodUS, l.Count, l.Option), true
	}
	return "", false
}

// bucket is what fragments/token_bucket.lua reckons with.
type bucket struct {
	tokenUS, tokenParts int64 // what a token is worth
	fullUS              int64 // how long an empty bucket takes to fill
}

func (l Limit) bucket() bucket {
	us, parts := l.PeriodUS/l.Count, l.PeriodUS%l.Count
	full := l.Capacity*us + (l.Capacity*parts+l.Count-1)/l.Count
	return bucket{tokenUS: us, tokenParts: parts, fullUS: full}
}

// fullText is how a state tells by which numbers it was written.
func (b bucket) fullText(capacity int64) string {
	if b.fullUS%1e6 == 0 {
		return fmt.Sprintf("%ds%d", b.fullUS/1e6, capacity)
	}
	return fmt.Sprintf("%du%d", b.fullUS, capacity)
}

// mark is how a receipt tells it, below MARKS.
func (b bucket) mark(capacity int64) int64 {
	const marks = 1 << 26
	return (31*b.fullUS + capacity) % marks
}
