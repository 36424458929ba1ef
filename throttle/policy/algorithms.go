package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// algorithms is the one place that says which algorithm takes which keys,
// besides those that every limit has.
var algorithms = []struct {
	name Algorithm
	keys []string
}{
	{FixedWindow, []string{"rate", "anchor"}},
	{SlidingLog, []string{"rate"}},
	{SlidingWindow, []string{"rate", "precision"}},
	{TokenBucket, []string{"rate", "burst", "refill"}},
	{Concurrency, []string{"slots", "lease"}},
	{Spacing, []string{"rate"}},
}

// algorithmKey is a key that belongs to algorithms.
type algorithmKey struct {
	name  string
	isSet func(*Limit) bool
	// check tells what is wrong with the limit's value, or with its absence, or
	// returns nil.
	check func(*Limit) error
}

// algorithmKeys are all of them, in the order messages name them.
var algorithmKeys = []algorithmKey{
	{"rate", func(l *Limit) bool { return l.Rate != Rate{} }, (*Limit).checkRate},
	{"anchor", func(l *Limit) bool { return l.Anchor != "" }, (*Limit).checkAnchor},
	{"precision", func(l *Limit) bool { return l.Precision != 0 }, (*Limit).checkPrecision},
	{"burst", func(l *Limit) bool { return l.Burst != 0 }, (*Limit).checkBurst},
	{"refill", func(l *Limit) bool { return l.Refill != "" }, (*Limit).checkRefill},
	{"slots", func(l *Limit) bool { return l.Slots != 0 }, (*Limit).checkSlots},
	{"lease", func(l *Limit) bool { return l.Lease != 0 }, (*Limit).checkLease},
}

// algorithmKeyNames lists the keys that belong to algorithms.
func algorithmKeyNames() []string {
	var names []string
	for _, key := range algorithmKeys {
		names = append(names, key.name)
	}
	return names
}

// judge tells what is wrong with the key in this limit, or returns nil. Of a limit
// whose algorithm is missing or unheard of it expects a rate, unless other keys
// say that it is about concurrency.
func (k algorithmKey) judge(l *Limit) error {
	own := keysOf(l.Algorithm)
	expected := slices.Contains(own, k.name) ||
		own == nil && k.name == "rate" && l.Slots == 0 && l.Lease == 0
	if !expected && !k.isSet(l) {
		return nil
	}
	if err := checkPlace(l.Algorithm, k.name); err != nil {
		return err
	}
	return k.check(l)
}

// keysOf returns an algorithm's own keys, or nil for one unheard of.
func keysOf(a Algorithm) []string {
	for _, row := range algorithms {
		if row.name == a {
			return row.keys
		}
	}
	return nil
}

// checkAlgorithm tells what is wrong with an algorithm's name, or returns nil.
func checkAlgorithm(a Algorithm) error {
	var names []string
	for _, row := range algorithms {
		names = append(names, string(row.name))
	}
	if a == "" {
		return errors.New("the algorithm is missing; use one of " + strings.Join(names, ", "))
	}
	return checkWord("algorithm", string(a), names...)
}

func (l *Limit) checkAnchor() error {
	if l.Anchor == "" {
		return nil
	}
	return checkWord("anchor", string(l.Anchor), string(AnchorClock), string(AnchorFirst))
}

func (l *Limit) checkRefill() error {
	if l.Refill == "" {
		return nil
	}
	return checkWord("refill", string(l.Refill), string(RefillSmooth), string(RefillInterval))
}

// checkWord tells that a word is none of those that mean something.
func checkWord(kind, word string, right ...string) error {
	if slices.Contains(right, word) {
		return nil
	}
	if meant := nearest(word, right); meant != "" {
		return fmt.Errorf("unknown %s %s; did you mean %s?", kind, quote(word), quote(meant))
	}
	if len(right) == 2 {
		return fmt.Errorf("unknown %s %s; use %s or %s", kind, quote(word), right[0], right[1])
	}
	return fmt.Errorf("unknown %s %s; use one of %s", kind, quote(word), strings.Join(right, ", "))
}

// checkPlace tells why a limit with this algorithm can not have a key that
// belongs to another, or returns nil. With an algorithm unheard of any key is in
// its place: which are right depends on how that is solved.
func checkPlace(a Algorithm, key string) error {
	own := keysOf(a)
	if own == nil || slices.Contains(own, key) {
		return nil
	}
	var owners []string
	for _, row := range algorithms {
		if slices.Contains(row.keys, key) {
			owners = append(owners, string(row.name))
		}
	}
	if owners == nil {
		return nil // a key of every limit
	}
	return fmt.Errorf("%s is a key of %s, but this limit is a %s, which has %s; remove it or change the algorithm",
		key, enumerate(owners), a, enumerate(own))
}

// enumerate joins words as in a sentence: a, b and c.
func enumerate(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
