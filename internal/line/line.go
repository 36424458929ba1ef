// Package line is how this module's worker talks to the waiting lines of policies: the
// names of their keys and rows, and the calls that tell who is to be woken. A Limiter of
// package throttle has the [Line] of each policy, and decides who may start.
package line

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rampmeter/rampmeter/lua"
	"github.com/rampmeter/rampmeter/throttle/policy"
)

// StandByTime is how long after it asked a task that stands by is to ask again.
const StandByTime = 2 * time.Second

const (
	// idleSlot: a slot this near is taken by whoever asks, for those who have a
	// better claim to it have not asked in time.
	idleSlot = 20 * time.Millisecond
	// wokenWait is how far ahead the slot of a woken task may lie before it goes
	// back into line.
	wokenWait = 2 * time.Second
)

// Line is the waiting line of a policy. Lanes and rows are explained in
// lua/parts/line.lua.
type Line struct {
	// Key is that of the line in Redis, empty for a policy that was removed.
	Key string
	// Scripts are what the line is called by.
	Scripts lua.Scripts

	redis  redis.UniversalClient
	policy string
	// lane is the attribute that makes the lanes, or empty.
	lane   string
	limits []policy.Limit
	// attributes are those whose values make a row, the lane's first.
	attributes []string
	// waking begins the arguments of wake, and asking what Asking returns.
	waking []any
	asking []byte
	// removed is the error of calls that need a policy in force; nil if it is.
	removed error
}

// New returns the line of a policy. The head is what its scripts are told of its limits.
func New(client redis.UniversalClient, scripts lua.Scripts, p *policy.Policy, head []any) *Line {
	l := &Line{
		Key: KeyPrefix(p.Name) + "/line" + shape(p), Scripts: scripts,
		redis: client, policy: p.Name, lane: p.Lane, limits: p.Limits, attributes: Attributes(p),
	}
	l.waking = append(slices.Clone(head), "wake", p.Lane != "")
	if p.Lane != "" {
		l.asking = appendNumber(l.asking, 1)
	} else {
		l.asking = appendNumber(l.asking, 0)
	}
	l.asking = appendNumber(appendNumber(l.asking, idleSlot.Microseconds()), wokenWait.Microseconds())
	for i := range p.Limits {
		l.waking = append(l.waking, StateKey(p.Name, p.Limits[i].Name, ""))
	}
	return l
}

// Removed returns the line of a policy that is not in force. Its tasks can be recalled and
// called; its other methods return the error.
func Removed(client redis.UniversalClient, policy string, err error) *Line {
	return &Line{redis: client, Scripts: lua.New(), policy: policy, removed: err}
}

// shape is what must be the same for tasks to stand in one line: which attributes make a
// row, and what the costs of its members are those of. Under another shape, tasks stand
// in another line; see [Line.Recall].
func shape(p *policy.Policy) string {
	var rows []string
	if p.Lane == "" {
		rows = append(rows, "") // the first is the lane
	}
	for _, name := range Attributes(p) {
		rows = append(rows, url.QueryEscape(name))
	}
	if shape := KeyName(strings.Join(rows, ",")) + CostAttributes(p); shape != "" {
		return ":" + shape
	}
	return ""
}

// CostAttributes are those that the limits' costs are in; none if all costs are 1.
func CostAttributes(p *policy.Policy) string {
	names := make([]string, len(p.Limits))
	for i := range p.Limits {
		names[i] = url.QueryEscape(p.Limits[i].Cost)
	}
	if all := strings.Join(names, ","); len(all) >= len(names) {
		return ";" + KeyName(all)
	}
	return "" // there are commas only
}

// Attributes are those whose values make a row of a policy's waiting line: the lane's
// first, and those that limits count by.
func Attributes(p *policy.Policy) []string {
	var names []string
	if p.Lane != "" {
		names = append(names, p.Lane)
	}
	for i := range p.Limits {
		if per := p.Limits[i].Per; per != "" && !slices.Contains(names, per) {
			names = append(names, per)
		}
	}
	return names
}

// Lane returns the lane that these attributes are in.
func (l *Line) Lane(attributes map[string]string) string {
	if l.lane == "" {
		return ""
	}
	return attributes[l.lane]
}

// wrap says which call failed.
func (l *Line) wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("line: %s in policy %q: %w", operation, l.policy, err)
}

// KeyPrefix begins all keys of a policy. They share one hash tag, so that one script call
// reaches them all in a Redis Cluster. Names of policies and limits have no character of
// these patterns, so no two keys meet.
func KeyPrefix(policy string) string { return "rm:{" + policy + "}" }

// FreezeKey is where it is kept until when a policy is frozen.
func FreezeKey(policy string) string { return KeyPrefix(policy) + "/freeze" }

// StateKey is where the count of one limit for one key is kept.
func StateKey(policy, limit, key string) string {
	name := KeyPrefix(policy) + ":" + limit
	if key != "" {
		name += ":" + KeyName(key)
	}
	return name
}

// KeyName keeps long attribute values out of Redis's key names.
func KeyName(key string) string {
	const longest = 128
	if len(key) <= longest {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256/" + hex.EncodeToString(sum[:])
}

// callKey is the channel on which single tasks are called.
func callKey(policy string) string { return KeyPrefix(policy) + "/call" }

// signals is the channel on which those who serve the line hear of it.
func (l *Line) signals() string { return l.Key + "/signal" }
