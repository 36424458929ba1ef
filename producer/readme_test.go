package producer_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What the README shows of producers is the Example's code.
func TestReadme(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(readme), "### Straight into line")
	require.True(t, found)
	_, code, found := strings.Cut(section, "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "```")
	require.Contains(t, code, "producer.Open")
	for line := range strings.Lines(code) {
		assert.Contains(t, string(example), line)
	}
}
