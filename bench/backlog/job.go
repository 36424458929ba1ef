package backlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// What tasks are made of.
const (
	taskType        = "call"
	tenantAttribute = "tenant"
)

// jobVariable makes a process of this program a worker: it holds the job.
const jobVariable = "RAMPMETER_BACKLOG_JOB"

// job is what a worker process has to know.
type job struct {
	Kind        kind          `json:"kind"`
	Redis       string        `json:"redis"`
	API         string        `json:"api"`
	Concurrency int           `json:"concurrency"`
	Limit       limit         `json:"limit"`
	Intervals   intervals     `json:"intervals"`
	Spread      time.Duration `json:"spread"`
	// Policies is the path of Rampmeter's policies file.
	Policies string `json:"policies,omitempty"`
}

// word is what a worker process tells: a line of JSON on its standard output.
type word struct {
	// Ready tells that it waits for its standard input to say go. When that ends,
	// the worker does.
	Ready bool `json:"ready,omitempty"`
	// Attempts are the tasks it was handed since its last word, by their numbers.
	Attempts []int `json:"attempts,omitempty"`
	// Done is how many handlers have returned since.
	Done int `json:"done,omitempty"`
}

// IsWorker reports whether this process was started to be a worker.
func IsWorker(getenv func(string) string) bool { return getenv(jobVariable) != "" }

func jobFrom(getenv func(string) string) (*job, error) {
	j := &job{}
	if err := json.Unmarshal([]byte(getenv(jobVariable)), j); err != nil {
		return nil, fmt.Errorf("%s: %w", jobVariable, err)
	}
	if j.Redis == "" || j.API == "" || j.Concurrency < 1 {
		return nil, errors.New(jobVariable + ": redis, api and concurrency are required")
	}
	return j, nil
}
