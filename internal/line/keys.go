package line

import (
	"crypto/sha256"
	"encoding/hex"
)

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

// linesKey is where the lines of a policy are listed that have somebody in them.
func linesKey(policy string) string { return KeyPrefix(policy) + "/lines" }

// callKey is the channel on which single tasks are called.
func callKey(policy string) string { return KeyPrefix(policy) + "/call" }

// signals is the channel on which those who serve the line hear of it.
func (l *Line) signals() string { return l.Key + "/signal" }

// woken holds the tasks that are waited for to ask.
func (l *Line) woken() string { return l.Key + "/woken" }
