package overhead

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/rampmeter/rampmeter/bench/internal/harness"
	"github.com/rampmeter/rampmeter/internal/program"
)

// report is all that a run measured.
type report struct {
	Redis       string   `json:"redis_version"`
	Tasks       int      `json:"tasks"`
	Concurrency int      `json:"concurrency"`
	Rounds      int      `json:"rounds"`
	Results     []result `json:"results"`
}

// result is of one kind: medians over its turns.
type result struct {
	Name      string  `json:"name"`
	PerSecond float64 `json:"tasks_per_second"`
	// Share is how many tasks are done while one without a policy is: the median over
	// the rounds, for what else the machine does in a round weighs on all.
	Share float64 `json:"share_of_no_policy"`
	// Commands are those that Redis counts, of asynq and of scripts, too.
	Commands float64 `json:"commands_per_task"`
	// WorkerCPU and RedisCPU are in microseconds per task.
	WorkerCPU float64 `json:"worker_cpu_us_per_task"`
	RedisCPU  float64 `json:"redis_cpu_us_per_task"`
}

// summarize takes the medians of each kind's turns, of which the first is without a
// policy.
func (r *report) summarize(kinds []kind, turns [][]turn) {
	for i, k := range kinds {
		if len(turns[i]) == 0 {
			continue
		}
		r.Results = append(r.Results, result{
			Name:      string(k),
			PerSecond: median(turns[i], func(_ int, t turn) float64 { return t.perSecond() }),
			Share:     median(turns[i], func(round int, t turn) float64 { return t.perSecond() / turns[0][round].perSecond() }),
			Commands:  median(turns[i], func(_ int, t turn) float64 { return float64(t.redis.Commands) / float64(t.tasks) }),
			WorkerCPU: median(turns[i], func(_ int, t turn) float64 { return t.each(t.worker) }),
			RedisCPU:  median(turns[i], func(_ int, t turn) float64 { return t.each(t.redis.CPU) }),
		})
	}
}

func (t turn) perSecond() float64 { return float64(t.tasks) / t.took.Seconds() }

// each is the part of d that falls to one task, in microseconds.
func (t turn) each(d time.Duration) float64 {
	return float64(d) / float64(time.Microsecond) / float64(t.tasks)
}

func median(turns []turn, figure func(round int, t turn) float64) float64 {
	figures := make([]float64, len(turns))
	for round, t := range turns {
		figures[round] = figure(round, t)
	}
	return harness.Median(figures)
}

func (r *report) writeText(w io.Writer) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Redis %s; one worker with %s; medians of %s of %s.\n\n", r.Redis,
		program.Counted(r.Concurrency, "task"), program.Counted(r.Rounds, "turn"), program.Counted(r.Tasks, "task"))
	table := harness.NewTable(&text)
	fmt.Fprintf(table, "%s\ttasks/s\tshare\tcommands\tworker CPU\tRedis CPU\t\n", harness.Padded("per task"))
	for _, row := range r.Results {
		fmt.Fprintf(table, "%s\t%.0f\t%.2f\t%.2f\t%.0f µs\t%.0f µs\t\n",
			harness.Padded(row.Name), row.PerSecond, row.Share, row.Commands, row.WorkerCPU, row.RedisCPU)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := text.WriteTo(w)
	return err
}
