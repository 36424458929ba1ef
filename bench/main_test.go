package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/internal/program"
	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

func none(string) string { return "" }

func TestEachPartHasItsHelp(t *testing.T) {
	t.Parallel()
	for first, args := range map[string][]string{
		"bench measures what a decision costs": {"-h"},
		"bench backlog measures what becomes":  {"backlog", "-h"},
		"bench overhead measures what a limit": {"overhead", "-h"},
		"bench conform tells which promises":   {"conform", "-h"},
	} {
		var stdout, stderr strings.Builder
		assert.Equal(t, program.OK, run(t.Context(), args, none, &stdout, &stderr))
		assert.True(t, strings.HasPrefix(stdout.String(), first), stdout.String())
		assert.Empty(t, stderr.String())
	}
}

// Nor does it empty a database that is in use.
func TestEachPartRefusesWhatItCanNotDo(t *testing.T) {
	t.Parallel()
	server := throttletest.Redis(t)
	require.NoError(t, server.Client().Set(t.Context(), "precious", 1, time.Hour).Err())
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-slice", "soon"}, program.Usage, "-slice"},
		{[]string{"backlog", "-for", "soon"}, program.Usage, "-for"},
		{[]string{"overhead", "-tasks", "0"}, program.Usage, "-tasks"},
		{[]string{"conform", "-step", "soon"}, program.Usage, "-step"},
		{[]string{"-redis", server.URI(), "-quick"}, program.Failed, "holds 1 keys"},
		{[]string{"backlog", "-redis", server.URI(), "-quick"}, program.Failed, "holds 1 keys"},
		{[]string{"overhead", "-redis", server.URI()}, program.Failed, "holds 1 keys"},
	} {
		var stdout, stderr strings.Builder
		assert.Equal(t, tt.code, run(t.Context(), tt.args, none, &stdout, &stderr))
		assert.Contains(t, stderr.String(), tt.says)
		assert.Empty(t, stdout.String())
	}
	require.NoError(t, server.Client().Get(t.Context(), "precious").Err())
}
