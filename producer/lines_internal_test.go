package producer

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLineReader(t *testing.T) {
	t.Parallel()
	const most = 100_000 // more than the reader's buffer
	long := strings.Repeat("x", most)
	for name, c := range map[string]struct {
		input string
		want  []string // "" for a line that is too long
		lines []int
	}{
		"nothing":                  {"", nil, nil},
		"blank lines":              {"\n  \n\t\r\n", nil, nil},
		"no end at the end":        {"a\nb", []string{"a", "b"}, []int{1, 2}},
		"ends of Windows":          {"a\r\nb\r\n", []string{"a", "b"}, []int{1, 2}},
		"numbers count blanks":     {"\na\n\nb\n", []string{"a", "b"}, []int{2, 4}},
		"byte order mark":          {"\ufeffa\n\ufeffb", []string{"a", "\ufeffb"}, []int{1, 2}},
		"as long as may be":        {long + "\n" + long + "\r\nb", []string{long, long, "b"}, []int{1, 2, 3}},
		"too long, then another":   {"a\n" + long + "x\nb\n", []string{"a", "", "b"}, []int{1, 2, 3}},
		"too long without an end":  {long + long + long, []string{""}, []int{1}},
		"too long, only of spaces": {strings.Repeat(" ", 2*most) + "\nb", []string{"", "b"}, []int{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := newLineReader(strings.NewReader(c.input), most)
			var texts []string
			var numbers []int
			var end int64
			for {
				next, err := reader.next()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				assert.Equal(t, next.err != nil, len(next.text) == 0)
				assert.Greater(t, next.end, end)
				texts, numbers, end = append(texts, string(next.text)), append(numbers, next.number), next.end
			}
			assert.Equal(t, c.want, texts)
			assert.Equal(t, c.lines, numbers)
			assert.Equal(t, int64(len(c.input)), reader.offset)
			assert.LessOrEqual(t, cap(reader.builder), 3*most, "what is too long is not kept")
		})
	}
}

func TestLineReaderTellsReadErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("cable cut")
	reader := newLineReader(io.MultiReader(strings.NewReader("a\nhalf a li"), iotest.ErrReader(broken)), 100)
	first, err := reader.next()
	require.NoError(t, err)
	assert.Equal(t, "a", string(first.text))
	_, err = reader.next()
	require.ErrorIs(t, err, broken, "half a line is no line")
}
