package backlog

import "time"

// attemptsPerTask and commandsPerTask are of all tasks. A turn that was cut short
// after every task had been seen counts as if the others had gone on like those
// that were called since.
func attemptsPerTask(t *turn) (float64, bool) {
	return t.perTask(t.seen.attempts, func(p *parking) int { return p.attempts })
}

func commandsPerTask(t *turn) (float64, bool) {
	return t.perTask(int(t.seen.commands), func(p *parking) int { return int(p.commands) })
}

// perTask spreads a sum over the tasks; before is the part of it that came until
// all tasks had been seen.
func (t *turn) perTask(sum int, before func(*parking) int) (float64, bool) {
	o := &t.seen
	if !o.cut {
		return float64(sum) / float64(o.tasks), true
	}
	called := len(o.calls)
	if o.parked == nil {
		return float64(sum) / float64(max(1, called)), called > 0
	}
	since := called - o.parked.called
	if since == 0 {
		return 0, false
	}
	early := before(o.parked)
	late := float64(sum-early) * float64(o.tasks-o.parked.called) / float64(since)
	return (float64(early) + late) / float64(o.tasks), true
}

func commandsPerEnqueue(t *turn) (float64, bool) {
	return t.seen.perEnqueue, true
}

func commandsPerWake(t *turn) (float64, bool) {
	if t.seen.parked == nil {
		return 0, false
	}
	since := len(t.seen.calls) - t.seen.parked.called
	return float64(t.seen.commands-t.seen.parked.commands) / float64(max(1, since)), since > 0
}

func bytesPerParked(t *turn) (float64, bool) {
	p := t.seen.parked
	if p == nil || t.contender.kind != rampmeter {
		return 0, false
	}
	return float64(p.bytes) / float64(t.seen.tasks-p.called), true
}

// left are tasks that neither started nor were archived.
func left(t *turn) (float64, bool) {
	started := map[int]bool{}
	for _, c := range t.seen.calls {
		started[c.task] = true
	}
	return float64(max(0, t.seen.tasks-len(started)-t.seen.archived)), true
}

func attemptsPeak(t *turn) (float64, bool) {
	if t.seen.parked == nil {
		return 0, false
	}
	most, sum, first := 0, 0, 0
	for _, p := range t.seen.tempo {
		if !p.at.After(t.seen.parked.at) {
			first++
			continue
		}
		sum += p.attempts
		for p.at.Sub(t.seen.tempo[first].at) >= time.Second {
			sum -= t.seen.tempo[first].attempts
			first++
		}
		most = max(most, sum)
	}
	return float64(most), true
}
