package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A test helper would bring the package testing into the program. Each command has this
// test in its own package: there, go test runs it again whenever a dependency changes.
func TestCommandLinksNoTestHelper(t *testing.T) {
	t.Parallel()
	listed, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(listed))
	require.Contains(t, packages, "github.com/rampmeter/rampmeter/throttle")
	for _, unwanted := range []string{"testing", "github.com/rampmeter/rampmeter/throttle/throttletest"} {
		assert.False(t, slices.Contains(packages, unwanted), "it links %s", unwanted)
	}
}
