package backlog

import (
	"encoding/json"
	"io"

	"github.com/rampmeter/rampmeter/bench/internal/rig"
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
}

// summarize takes the medians of the contender's turns.
func (r *result) summarize(turns []*turn) {
	r.Figures = map[string]float64{}
	for _, m := range metrics {
		var figures []float64
		for _, t := range turns {
			if figure, ok := m.reckon(t); ok {
				figures = append(figures, figure)
			}
		}
		if len(figures) > 0 {
			r.Figures[m.name] = rig.Median(figures)
		}
	}
	for _, t := range turns {
		r.Cut = r.Cut || t.seen.cut
	}
}

func (r *report) writeJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
