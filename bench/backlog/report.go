package backlog

import (
	"errors"
	"fmt"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
)

// report is all that a run measured.
type report struct {
	Redis       string     `json:"redis_version"`
	Workers     int        `json:"workers"`
	Concurrency int        `json:"concurrency"`
	Rounds      int        `json:"rounds"`
	Scenarios   []*section `json:"scenarios"`
}

// section is of one scenario.
type section struct {
	Name  string  `json:"name"`
	About string  `json:"about"`
	Tasks int     `json:"tasks"`
	Limit string  `json:"limit"`
	Ideal float64 `json:"ideal_s"`
	// Results are in the order of the contenders.
	Results []*result `json:"results"`
	// LeftOut are contenders that did not take part, with the reason.
	LeftOut []string `json:"left_out,omitempty"`

	scenario *scenario
}

// result is what one contender did.
type result struct {
	Name string `json:"name"`
	// Cut tells that a turn ended before all tasks were done. What is counted for
	// each task is reckoned from those that were.
	Cut bool `json:"cut,omitempty"`
	// Figures are medians over the rounds, by the names of metrics; those that mean
	// nothing here are not there.
	Figures map[string]float64 `json:"figures"`
	// Error is what ended its turns.
	Error string `json:"error,omitempty"`

	contender *contender
	turns     []*turn
}

func newSection(s *scenario) *section {
	return &section{
		Name: s.name, About: s.about, Tasks: s.tasks(), Limit: s.limit.rate(), Ideal: s.ideal().Seconds(),
		scenario: s,
	}
}

// summarize takes the medians of every contender's turns.
func (s *section) summarize() {
	for _, r := range s.Results {
		r.summarize()
	}
}

func (r *result) summarize() {
	r.Figures = map[string]float64{}
	for _, m := range metrics {
		var figures []float64
		for _, t := range r.turns {
			if figure, ok := m.reckon(t); ok {
				figures = append(figures, figure)
			}
		}
		if len(figures) > 0 {
			r.Figures[m.name] = harness.Median(figures)
		}
	}
	for _, t := range r.turns {
		r.Cut = r.Cut || t.seen.cut
	}
}

// failed tells which contenders' turns could not be had, or returns nil.
func (r *report) failed() error {
	var errs []error
	for _, s := range r.Scenarios {
		for _, c := range s.Results {
			if c.Error != "" {
				errs = append(errs, fmt.Errorf("%s, %s: %s", s.Name, c.Name, c.Error))
			}
		}
	}
	return errors.Join(errs...)
}
