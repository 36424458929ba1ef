package upstream_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
)

// What the README shows of the transport is the Example's code, and it names every
// API.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(readme), "### The upstream is right")
	require.True(t, found)
	_, code, found := strings.Cut(section, "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "```")
	require.Contains(t, code, "upstream.Transport")
	for line := range strings.Lines(code) {
		assert.Contains(t, string(example), line)
	}
	for _, api := range throttle.APIs() {
		assert.Contains(t, section, string(api))
	}
}
