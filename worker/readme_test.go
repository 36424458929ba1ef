package worker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/policy"
)

// What the README shows is what is tested: its Go is that of Examples, and its policies
// file is one. It names every API that is understood.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme := read(t, "../README.md")
	for heading, example := range map[string]string{
		"## Use it":                 "example_test.go",
		"### Straight into line":    "../producer/example_test.go",
		"### The upstream is right": "../throttle/upstream/example_test.go",
	} {
		_, section, found := strings.Cut(readme, heading)
		require.True(t, found, heading)
		for line := range strings.Lines(block(t, section, "go")) {
			assert.Contains(t, read(t, example), line)
		}
	}
	_, err := policy.Parse("README.md", []byte(block(t, readme, "yaml")))
	assert.NoError(t, err)
	for _, api := range policy.APIs() {
		assert.Contains(t, readme, string(api))
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// block returns the first fenced block of a language.
func block(t *testing.T, markdown, language string) string {
	t.Helper()
	_, rest, found := strings.Cut(markdown, "```"+language+"\n")
	require.True(t, found, "no block of %s", language)
	code, _, _ := strings.Cut(rest, "```")
	require.NotEmpty(t, strings.TrimSpace(code))
	return code
}
