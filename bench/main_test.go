package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEachPartHasItsHelp(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for first, args := range map[string][]string{
		"bench measures what a decision costs": {"-h"},
		"bench backlog measures what becomes":  {"backlog", "-h"},
	} {
		var stdout, stderr strings.Builder
		assert.Zero(t, run(t.Context(), args, none, &stdout, &stderr))
		assert.True(t, strings.HasPrefix(stdout.String(), first), stdout.String())
		assert.Empty(t, stderr.String())
	}
}
