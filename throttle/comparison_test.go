package throttle

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rampmeter/rampmeter/throttle/throttletest"
)

// modelOps is how many random operations each algorithm's script is compared with
// its oracle on. RAMPMETER_MODEL_OPS sets another number, such as ten million.
func modelOps(t testing.TB) int {
	t.Helper()
	text := os.Getenv("RAMPMETER_MODEL_OPS")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "RAMPMETER_MODEL_OPS")
	return n
}

// episodeOps is the length of one random story; each begins on an empty server.
const episodeOps = 400

// comparison tells the same random story to a script and to its oracle.
type comparison struct {
	t       testing.TB
	seed    uint64
	client  *redis.Client
	random  *rand.Rand
	limit   Limit
	limiter *Limiter
	oracle  oracle
	now     int64
	granted []*Reservation
	ended   map[int]bool // granted reservations that were cancelled
	story   []string
	// crowded is set where requests come several at a time.
	crowded bool
}

const (
	comparisonClock = "clock"
	comparisonEpoch = 1_800_000_000_000_000 // microseconds; a whole minute
)

// compareWithOracle tells random stories until enough operations were compared.
// numbers makes the limit of a story, and other numbers for the same limit later.
func compareWithOracle(t *testing.T, numbers func(*rand.Rand) Limit, newOracle func(Limit) oracle) {
	t.Helper()
	client := throttletest.Redis(t).Client()
	seeds := (modelOps(t) + episodeOps - 1) / episodeOps
	for seed := range uint64(seeds) {
		forgetScripts(t, client, seed)
		tellStory(t, client, seed, numbers, newOracle)
	}
}

// forgetScripts empties the server's script cache now and then: each change of a
// limit's numbers makes new scripts, and a server keeps them all.
func forgetScripts(t *testing.T, client *redis.Client, story uint64) {
	t.Helper()
	if story%100 == 99 {
		require.NoError(t, client.ScriptFlush(t.Context()).Err())
	}
}

func tellStory(t testing.TB, client *redis.Client, seed uint64, numbers func(*rand.Rand) Limit, newOracle func(Limit) oracle) {
	t.Helper()
	tell(t, &comparison{client: client, seed: seed, crowded: true}, numbers, newOracle)
}

// tellLonelyStory is tellStory where nobody comes along.
func tellLonelyStory(t testing.TB, client *redis.Client, seed uint64, numbers func(*rand.Rand) Limit, newOracle func(Limit) oracle) {
	t.Helper()
	tell(t, &comparison{client: client, seed: seed}, numbers, newOracle)
}

func tell(t testing.TB, d *comparison, numbers func(*rand.Rand) Limit, newOracle func(Limit) oracle) {
	t.Helper()
	random := rand.New(rand.NewPCG(d.seed, 42))
	d.t, d.random, d.now, d.ended = t, random, comparisonEpoch, map[int]bool{}
	d.limit = numbers(random)
	d.oracle = newOracle(d.limit)
	d.flush()
	d.remake()
	for range episodeOps {
		d.step(numbers)
	}
}

func (d *comparison) step(numbers func(*rand.Rand) Limit) {
	switch n := d.random.IntN(100); {
	case n < 55:
		d.reserve()
	case n < 63:
		d.cancel()
	case n < 70:
		d.adjust()
	case n < 94:
		d.tick()
	case n < 97:
		d.change(numbers(d.random))
	case n < 98:
		d.tell("flush")
		d.flush()
		d.oracle.flush()
		d.granted, d.ended = nil, map[int]bool{}
	}
	if d.random.IntN(3) == 0 {
		d.compareStatus()
	}
}

func (d *comparison) tell(format string, args ...any) {
	d.story = append(d.story, fmt.Sprintf("%8d "+format, append([]any{d.now - comparisonEpoch}, args...)...))
}

func (d *comparison) fail(format string, args ...any) {
	d.t.Helper()
	const last = 25
	story := d.story[max(0, len(d.story)-last):]
	for _, line := range story {
		d.t.Log(line)
	}
	state, _ := d.client.Get(d.t.Context(), "rm:{api}:limit").Result()
	d.t.Logf("story %d, state %q", d.seed, state)
	d.t.Fatalf(format, args...)
}

func (d *comparison) request(cost, wait int64) Request {
	return Request{
		Policy: "api", TaskID: "task", MaxWait: time.Duration(wait) * time.Microsecond,
		Attributes: map[string]string{"cost": strconv.FormatInt(cost, 10)},
	}
}

func (d *comparison) reserve() {
	d.t.Helper()
	cost := 1 + d.random.Int64N(d.limit.Capacity())
	if d.random.IntN(2) == 0 {
		cost = 1
	}
	wait := int64(0)
	if d.random.IntN(2) == 0 {
		wait = d.random.Int64N(4 * d.limit.Rate.Period.Microseconds())
	}
	for _, r := range d.together(d.request(cost, wait)) {
		granted, at := d.oracle.reserve(d.now, wait, cost, "task")
		d.tell("reserve cost %d wait %d -> %v %d", cost, wait, r.Outcome, r.At.UnixMicro()-comparisonEpoch)
		if (r.Outcome == Granted) != granted || r.At.UnixMicro() != at {
			d.fail("%s: the oracle says granted %v at %d", d.limit.String(), granted, at-comparisonEpoch)
		}
		d.compare(r.Limits[0])
		if granted {
			d.granted = append(d.granted, r)
		}
	}
	d.callEnded()
}

// callEnded tells the oracle, if it wants to know, that a script call of several
// requests has ended.
func (d *comparison) callEnded() {
	if o, ok := d.oracle.(interface{ ended(now int64) }); ok {
		o.ended(d.now)
	}
}

// together makes the same request a few times in one script call.
func (d *comparison) together(request Request) []*Reservation {
	d.t.Helper()
	requests := 1
	if d.crowded && d.random.IntN(4) == 0 {
		requests += d.random.IntN(6)
	}
	reservations, err := ReserveTogether(d.limiter, slices.Repeat([]Request{request}, requests)...)
	require.NoError(d.t, err)
	return reservations
}

// pick chooses a granted reservation that was not cancelled, mostly a late one.
func (d *comparison) pick() (int, bool) {
	if len(d.granted) == 0 {
		return 0, false
	}
	n := len(d.granted) - 1 - d.random.IntN(min(8, len(d.granted)))
	return n, !d.ended[n]
}

func (d *comparison) cancel() {
	n, ok := d.pick()
	if !ok {
		return
	}
	d.ended[n] = true
	d.tell("cancel %d, of slot %d", n, d.granted[n].At.UnixMicro()-comparisonEpoch)
	d.oracle.cancel(d.now, n)
	r := d.granted[n]
	require.NoError(d.t, r.Cancel(d.t.Context()))
}

func (d *comparison) adjust() {
	n, ok := d.pick()
	if !ok {
		return
	}
	r := d.granted[n]
	actual := d.random.Int64N(2 * d.limit.Capacity())
	more := actual - r.claim.costs[0]
	d.tell("adjust %d by %d", n, more)
	d.oracle.adjust(d.now, n, more)
	require.NoError(d.t, r.Adjust(d.t.Context(), map[string]string{"cost": strconv.FormatInt(actual, 10)}))
}

func (d *comparison) tick() {
	period := d.limit.Rate.Period.Microseconds()
	switch d.random.IntN(8) {
	case 0:
		d.now += d.random.Int64N(5 * period)
	case 1:
		d.now -= d.random.Int64N(period)
	case 2:
		d.now++
	default:
		d.now += d.random.Int64N(period/2 + 1)
	}
	d.tell("is the time")
	d.setClock()
}

func (d *comparison) change(to Limit) {
	d.tell("change to %s", to.String())
	d.limit = to
	d.oracle.change(d.now, to)
	require.NoError(d.t, d.limiter.Update(d.config()))
	RunByClockKey(d.limiter, comparisonClock)
}

func (d *comparison) compareStatus() {
	d.t.Helper()
	got, err := d.limiter.Peek(d.t.Context(), d.request(1, 0))
	require.NoError(d.t, err)
	d.compare(got.Limits[0])
}

// compare holds what a limit says of itself against the oracle.
func (d *comparison) compare(status LimitStatus) {
	d.t.Helper()
	remaining, reset := d.oracle.status(d.now)
	if status.Remaining != remaining || status.ResetAfter.Microseconds() != reset {
		d.fail("%s: remaining %d, reset after %d; the oracle says %d, %d",
			d.limit.String(), status.Remaining, status.ResetAfter.Microseconds(), remaining, reset)
	}
}

func (d *comparison) flush() {
	require.NoError(d.t, d.client.FlushDB(d.t.Context()).Err())
	d.setClock()
}

func (d *comparison) setClock() {
	require.NoError(d.t, d.client.Set(d.t.Context(), comparisonClock, d.now, 0).Err())
}

// remake makes a Limiter for the numbers of now.
func (d *comparison) remake() {
	limiter, err := New(d.client, d.config())
	require.NoError(d.t, err)
	RunByClockKey(limiter, comparisonClock)
	d.limiter = limiter
}

func (d *comparison) config() *Config {
	d.limit.Name, d.limit.Cost = "limit", "cost"
	return &Config{Policies: []Policy{{Name: "api", Limits: []Limit{d.limit}}}}
}
