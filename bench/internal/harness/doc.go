// Package harness is what the parts of the bench share: the Redis they measure on, how
// they take options, and how they show what they do and found.
package harness
