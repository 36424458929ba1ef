package throttletest

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Quota is what an Upstream allows each key. Its numbers are the upstream's own:
// nothing here is shared with the limiter under test.
type Quota struct {
	// Limit is how many calls pass in each Window. Both must be above zero.
	Limit  int64
	Window time.Duration
	// Start is the beginning of one window, and so the phase of all. Zero means
	// the moment the Upstream was made. A bucket has no windows and ignores it.
	Start time.Time
	// Burst, if above zero, makes a bucket of the quota: it holds Burst calls, is
	// full at first, and gets Limit new ones evenly over each Window.
	Burst int64
}

func (q *Quota) validate() error {
	var problems []error
	if q.Limit <= 0 {
		problems = append(problems, fmt.Errorf("quota limit is %d; it must be above zero", q.Limit))
	}
	if q.Window <= 0 {
		problems = append(problems, fmt.Errorf("quota window is %s; it must be above zero", q.Window))
	}
	if q.Burst < 0 {
		problems = append(problems, fmt.Errorf("quota burst is %d; it must not be negative", q.Burst))
	}
	if q.Window > 0 && q.Burst > math.MaxInt64/int64(q.Window) {
		problems = append(problems, fmt.Errorf("quota burst %d is too much to reckon exactly over %s; use a smaller one",
			q.Burst, q.Window))
	}
	return errors.Join(problems...)
}

// meter counts the calls of one key. Not safe for concurrent use.
type meter interface {
	// take passes one call at that time, or refuses it and takes nothing.
	take(now time.Time) verdict
}

// verdict is how a quota stands after a call.
type verdict struct {
	passed           bool
	limit, remaining int64
	// reset is when the quota is whole again.
	reset time.Time
	// retryAfter is how long until a refused call would pass.
	retryAfter time.Duration
	// refillIn, of a bucket, is how long until it is full; zero for windows.
	refillIn time.Duration
}

func (q *Quota) newMeter() meter {
	if q.Burst > 0 {
		return &bucketMeter{quota: *q, level: q.Burst * int64(q.Window)}
	}
	return &windowMeter{quota: *q, window: math.MinInt64}
}

// windowMeter allows Limit calls in each of the windows that Start sets.
type windowMeter struct {
	quota  Quota
	window int64 // the number of the window that used counts, from Start
	used   int64
}

func (m *windowMeter) take(now time.Time) verdict {
	// A clock that steps back must not open an old window once more.
	if w := windowOf(now, m.quota.Start, m.quota.Window); w > m.window {
		m.window, m.used = w, 0
	}
	v := verdict{
		passed: m.used < m.quota.Limit,
		limit:  m.quota.Limit,
		reset:  m.quota.Start.Add(time.Duration(m.window+1) * m.quota.Window),
	}
	if v.passed {
		m.used++
	} else {
		v.retryAfter = v.reset.Sub(now)
	}
	v.remaining = m.quota.Limit - m.used
	return v
}

// windowOf numbers the half-open windows of that length: 0 begins at start.
func windowOf(t, start time.Time, window time.Duration) int64 {
	since := t.Sub(start)
	n := int64(since / window)
	if since%window < 0 {
		n--
	}
	return n
}

// bucketMeter counts a token as Window parts, so that each nanosecond refills a
// whole number of them, Limit.
type bucketMeter struct {
	quota Quota
	level int64
	at    time.Time // when level was reckoned; zero before the first call
}

func (m *bucketMeter) take(now time.Time) verdict {
	token, full := int64(m.quota.Window), m.quota.Burst*int64(m.quota.Window)
	if now.After(m.at) {
		if passed := now.Sub(m.at); passed >= m.refill(full-m.level) {
			m.level = full
		} else {
			m.level += int64(passed) * m.quota.Limit
		}
		m.at = now
	}
	v := verdict{passed: m.level >= token, limit: m.quota.Burst}
	if v.passed {
		m.level -= token
	} else {
		v.retryAfter = m.at.Sub(now) + m.refill(token-m.level)
	}
	v.remaining = m.level / token
	v.refillIn = m.refill(full - m.level)
	v.reset = m.at.Add(v.refillIn)
	return v
}

// refill is how long so many parts take to come, rounded up.
func (m *bucketMeter) refill(parts int64) time.Duration {
	d := parts / m.quota.Limit
	if parts%m.quota.Limit > 0 {
		d++
	}
	return time.Duration(d)
}
