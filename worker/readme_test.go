package worker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle"
)

// What the README shows is what is tested: its Go is the Example's, and its
// policies file is one.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme := read(t, "../README.md")
	example := read(t, "example_test.go")
	for line := range strings.Lines(block(t, readme, "go")) {
		assert.Contains(t, example, line)
	}
	_, err := throttle.Parse("README.md", []byte(block(t, readme, "yaml")))
	assert.NoError(t, err)
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
