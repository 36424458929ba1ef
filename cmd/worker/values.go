package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// queueWeights is a flag value: queues and their weights, as name=weight,...
type queueWeights map[string]int

func (q *queueWeights) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(*q)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, (*q)[name]))
	}
	return strings.Join(parts, ",")
}

// Set replaces what was there before, so that the default does not linger.
func (q *queueWeights) Set(text string) error {
	weights := queueWeights{}
	for part := range strings.SplitSeq(text, ",") {
		name, weight, found := strings.Cut(strings.TrimSpace(part), "=")
		if !found || name == "" {
			return fmt.Errorf("%q is not NAME=WEIGHT, as in critical=6,default=1", part)
		}
		n, err := strconv.Atoi(weight)
		if err != nil || n < 1 {
			return fmt.Errorf("queue %q has the weight %q; it must be a whole number from 1", name, weight)
		}
		if _, twice := weights[name]; twice {
			return fmt.Errorf("queue %q is named twice", name)
		}
		weights[name] = n
	}
	*q = weights
	return nil
}

// readHosts reads hosts separated by commas. It refuses a list of nothing, which would not
// allow none, but all.
func (o *options) readHosts(text string) error {
	o.allowHosts = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	if len(o.allowHosts) == 0 {
		return errors.New("it names no host")
	}
	return nil
}
