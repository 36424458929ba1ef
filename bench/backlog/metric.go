package backlog

import (
	"fmt"
)

// metric is one figure of a turn.
type metric struct {
	// name is the one in JSON; heading the table's, empty for JSON only.
	name, heading string
	// text is how a table shows it.
	text func(float64) string
	// reckon returns false where the figure means nothing.
	reckon func(*turn) (float64, bool)
}

// metrics are all of them, in the order of the tables' columns.
var metrics = []metric{
	// Attempts are what asynq hands to the handler, Rampmeter's middleware included.
	{"attempts_per_task", "attempts", decimals(2), attemptsPerTask},
	// The most of them in a second, once all tasks had been seen: a herd shows here.
	{"attempts_peak", "peak/s", decimals(0), attemptsPeak},
	// Commands are what a meter counts, from the start to the last task's end,
	// without those of the producer.
	{"commands_per_task", "commands", decimals(1), commandsPerTask},
	{"commands_per_enqueue", "enqueue", decimals(1), commandsPerEnqueue},
	// Those from when all tasks had been seen, for each start from then on.
	{"commands_per_wake", "per wake", decimals(1), commandsPerWake},
	// What was started of what the limit allows from the first start to the last. It is
	// above 100 % for a contender whose own algorithm allows more. Of slots, it is how
	// much of their time the API was called in.
	{"quota_used", "quota used", percent, quotaUsed},
	// The same from when all tasks had been seen.
	{"quota_used_parked", "once parked", percent, quotaUsedParked},
	// Neighbours among the starts of a tenant that are in the wrong order.
	{"inversions", "inversions", percent, inversions},
	// How long after its reserved slot a handler started.
	{"slot_p50_ms", "late p50", milliseconds, slotLateness(50)},
	{"slot_p99_ms", "late p99", milliseconds, slotLateness(99)},
	{"slot_max_ms", "at most", milliseconds, slotLateness(100)},
	// The most starts of a tenant, or of all, in any interval of one period; of slots,
	// the most calls at once.
	{"busiest_period", "busiest", decimals(0), busiest},
	// How many starts there were at most above what the limit allows.
	{"over", "over", decimals(0), over},
	{"archived", "archived", decimals(0), func(t *turn) (float64, bool) { return float64(t.seen.archived), true }},
	{"left", "left", decimals(0), left},
	{"bytes_per_parked_task", "bytes parked", decimals(0), bytesPerParked},
	// Seconds from the start to when all tasks had been seen, the last task of the
	// small tenants was called, and the last one of all.
	{"parked_s", "parked", seconds, parkedAfter},
	{"small_done_s", "small done", seconds, smallDone},
	{"done_s", "all done", seconds, allDone},
}

func decimals(n int) func(float64) string {
	return func(x float64) string { return fmt.Sprintf("%.*f", n, x) }
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

func milliseconds(x float64) string { return fmt.Sprintf("%.1f ms", x) }

func seconds(x float64) string { return fmt.Sprintf("%.1f s", x) }
