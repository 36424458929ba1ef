package producer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// line is one non-blank line of the input.
type line struct {
	number int    // from 1, blank lines counted
	text   []byte // without its line end; only until the next line is read
	end    int64  // bytes of input up to and with this line
	err    error  // set instead of text when the line is too long
}

// lineReader cuts input into lines and never holds more than one bounded line.
type lineReader struct {
	in      *bufio.Reader
	most    int
	number  int
	offset  int64
	builder []byte
}

func newLineReader(r io.Reader, most int) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(r, 64<<10), most: most}
}

// next returns the next line that is not blank; io.EOF after the last one. Any
// other error is the input's own.
func (l *lineReader) next() (line, error) {
	for {
		text, tooLong, err := l.read()
		if err != nil {
			return line{}, err
		}
		l.number++
		if l.number == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin a file with it
		}
		current := line{number: l.number, text: bytes.TrimSpace(text), end: l.offset}
		if tooLong {
			current.text, current.err = nil, fmt.Errorf("longer than %d bytes", l.most)
			return current, nil
		}
		if len(current.text) > 0 {
			return current, nil
		}
	}
}

// read returns one line, blank or not, and drops what is beyond the bound.
func (l *lineReader) read() (text []byte, tooLong bool, err error) {
	l.builder = l.builder[:0]
	for {
		part, err := l.in.ReadSlice('\n')
		l.offset += int64(len(part))
		if len(l.builder)+len(bytes.TrimRight(part, "\r\n")) > l.most {
			tooLong = true
		}
		if !tooLong {
			l.builder = append(l.builder, part...)
		}
		switch {
		case err == nil:
			return l.builder, tooLong, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && (len(l.builder) > 0 || tooLong):
			return l.builder, tooLong, nil // a last line without a line end
		default:
			return nil, false, err
		}
	}
}
