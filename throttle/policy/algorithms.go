package policy

import (
	"errors"
	"fmt"
	"reflect"
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

// algorithmKey is a key that belongs to algorithms, and how its value is checked.
type algorithmKey struct {
	name  string
	check func(l *Limit, given bool) error
}

var algorithmKeys = []algorithmKey{
	{"rate", (*Limit).checkRate},
	{"anchor", (*Limit).checkAnchor},
	{"precision", (*Limit).checkPrecision},
	{"burst", (*Limit).checkBurst},
	{"refill", (*Limit).checkRefill},
	{"slots", (*Limit).checkSlots},
	{"lease", (*Limit).checkLease},
}

// judge tells what is wrong with the key in this limit, or returns nil; zero says that
// somebody has written one. Of a limit whose algorithm is missing or unheard of it expects
// a rate, unless other keys say that it is about concurrency.
func (k algorithmKey) judge(l *Limit, zero bool) error {
	own := keysOf(l.Algorithm)
	expected := slices.Contains(own, k.name) ||
		own == nil && k.name == "rate" && l.Slots == 0 && l.Lease == 0
	given := zero || !reflect.ValueOf(fieldFor(l, k.name)).Elem().IsZero()
	if !expected && !given {
		return nil
	}
	if err := checkPlace(l.Algorithm, k.name); err != nil {
		return err
	}
	return k.check(l, given)
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

func (l *Limit) checkAnchor(given bool) error {
	if !given {
		return nil
	}
	return checkWord("anchor", l.Anchor, AnchorClock, AnchorFirst)
}

func (l *Limit) checkRefill(given bool) error {
	if !given {
		return nil
	}
	return checkWord("refill", l.Refill, RefillSmooth, RefillInterval)
}

// checkWord tells that a word is none of those that mean something.
func checkWord[W ~string](kind string, word W, right ...W) error {
	if slices.Contains(right, word) {
		return nil
	}
	words := make([]string, len(right))
	for i, w := range right {
		words[i] = string(w)
	}
	problem := fmt.Sprintf("unknown %s %s; ", kind, quote(string(word)))
	switch meant := nearest(string(word), words); {
	case meant != "":
		return errors.New(problem + "did you mean " + quote(meant) + "?")
	case len(words) == 2:
		return errors.New(problem + "use " + words[0] + " or " + words[1])
	}
	return errors.New(problem + "use one of " + strings.Join(words, ", "))
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
