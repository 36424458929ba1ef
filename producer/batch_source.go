package producer

import (
	"io"
)

// source gives a batch its entries one after another.
type source interface {
	// next returns the next item, having counted it into load; io.EOF after the
	// last.
	next(load *Load) (item, error)
}

// item is one line of a batch on its way.
type item struct {
	sequence int // from 0 without gaps, where line numbers skip blank lines
	line     int
	end      int64 // bytes of input up to and with this line
	entry    Entry
	bad      error // why the line is no task
}

// fileSource reads entries from lines.
type fileSource struct {
	lines    *lineReader
	from     int
	sequence int
}

func (s *fileSource) next(load *Load) (item, error) {
	for {
		current, err := s.lines.next()
		if err != nil {
			return item{}, err
		}
		if current.number < s.from {
			continue
		}
		next := item{sequence: s.sequence, line: current.number, end: current.end, bad: current.err}
		s.sequence++
		if next.bad == nil {
			next.entry, next.bad = ParseEntry(current.text)
		}
		if next.bad == nil {
			next.bad = load.Add(next.entry.Type, next.entry.Attributes)
		}
		return next, nil
	}
}

// copySource gives the same entry again and again.
type copySource struct {
	entry    Entry
	left     int
	sequence int
}

func (s *copySource) next(load *Load) (item, error) {
	if s.left <= 0 {
		return item{}, io.EOF
	}
	s.left--
	next := item{sequence: s.sequence, line: s.sequence + 1, entry: s.entry}
	s.sequence++
	if next.bad = s.entry.Validate(); next.bad == nil {
		next.bad = load.Add(s.entry.Type, s.entry.Attributes)
	}
	return next, nil
}
